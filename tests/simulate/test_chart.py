"""Charts: what is drawn lies inside of its frame, and can be read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.simulate.report.chart import Dot, Line, lines, over, scatter

VALUES = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=30)


@given(values=VALUES, log=st.booleans())
def test_a_scale_holds_every_value_in_order_with_round_ticks(values: list[float], log: bool) -> None:
    scale = over(values, 0.0, 100.0, log=log)
    places = [scale(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(-1e-9 <= p <= 100.0 + 1e-9 for p in places)
    assert all(re.fullmatch(r"[125]|10?", f"{tick:.0e}".split("e")[0]) or not log for tick in scale.ticks(5))
    assert len(scale.ticks(5)) <= 30


@given(values=VALUES)
def test_a_chart_is_whole_and_inside_of_its_frame(values: list[float]) -> None:
    points = [(10.0 * i, v) for i, v in enumerate(values, 1)]
    drawn = ET.fromstring(
        lines(
            [Line("a < b", "#123456", points, steps=True)], label="x & y", unit="ms", limit=5.0, missed="#f00"
        )
    )
    for circle in drawn.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 1100
        assert 0 <= float(circle.attrib["cy"]) <= 240


def test_names_of_points_stand_free_of_each_other() -> None:
    close = [(28.1, 3678), (27.7, 2494), (28.5, 2594), (31.4, 2980), (29.3, 2754), (36.6, 2797), (27.1, 2389)]
    dots = [Dot(f"policy-{i}", "#123456", at) for i, at in enumerate(close)]
    drawn = ET.fromstring(scatter(dots, label="x", units=("ms", "tokens/s"), limit=30.0))
    boxes = []
    for text in drawn.iter("{http://www.w3.org/2000/svg}text"):
        if text.text and text.text.startswith("policy-"):
            x, width = float(text.attrib["x"]), 7.0 * len(text.text)
            left = x - width if text.attrib["text-anchor"] == "end" else x
            boxes.append((left, left + width, float(text.attrib["y"])))
    assert len(boxes) == len(close)
    for i, (left, right, y) in enumerate(boxes):
        for other_left, other_right, other_y in boxes[:i]:
            assert right <= other_left or other_right <= left or abs(y - other_y) >= 13


def test_a_course_keeps_its_last_setting() -> None:
    steps = Line("cap", "#123456", [(2.0, 8.0), (4.0, 8.0), (6.0, 16.0), (8.0, 16.0)], steps=True)
    drawn = ET.fromstring(lines([steps], label="cap", unit="sequences"))
    line = next(drawn.iter("{http://www.w3.org/2000/svg}polyline")).attrib["points"].split()
    places = [tuple(map(float, point.split(","))) for point in line]
    assert places[-1][0] == pytest.approx(1086.0)  # the frame's right end
    assert places[-1][1] < places[0][1]

"""Traces are read as they are published, and a broken one is answered with the place and the cure."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.simulate.demand import Request
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.shapes import SHAPES, Size, lognormal, shaped
from llamaserver.simulate.traces import cut, demand_of, from_rates, is_rates, read_rates, read_requests

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n'
    '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0]}\n'
)
RATES = "t_s,req_per_s,active_clients\n0,10,3\n600,30,3\n1200,20,3\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_an_azure_trace_begins_at_zero(tmp_path: Path) -> None:
    first, second = read_requests(written(tmp_path, AZURE))
    assert first == Request(0.0, 374, 44)
    assert second.at == pytest.approx(4.314579, abs=1e-5)
    assert (second.prompt, second.output) == (396, 109)


def test_a_mooncake_trace_tells_milliseconds(tmp_path: Path) -> None:
    assert read_requests(written(tmp_path, MOONCAKE)) == [Request(0.0, 6758, 500), Request(3.0, 7322, 490)]


BLOCKS = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
    '{"timestamp": 3000, "input_length": 1024, "output_length": 4, "hash_ids": [7, 10]}\n'
)


def test_a_mooncake_trace_tells_the_full_blocks_of_its_prompts_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, BLOCKS)
    read = read_requests(path, prefixes=True)
    assert read == [Request(0.0, 1100, 5, (7, 8)), Request(3.0, 1024, 4, (7, 10))]
    assert [r.hash_ids for r in cut(read, 1.0, 5.0, 2.0)] == [(7, 10)]
    assert all(r.hash_ids == () for r in read_requests(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (AZURE, "leave --prefix-cache out"),
        (RATES, "leave --prefix-cache out"),
        (BLOCKS.replace(', "hash_ids": [7, 10]', ""), "line 2, without hash_ids"),
        (BLOCKS.replace("[7, 10]", '"7"'), "line 2, column hash_ids: this is no list of whole numbers"),
        (BLOCKS.replace("[7, 10]", "[7, true]"), "line 2, column hash_ids: this is no list"),
        (BLOCKS.replace("[7, 8, 9]", "[7]"), "1 blocks for 1100 tokens; give one for every 512"),
        (BLOCKS.replace("[7, 10]", "[7, 7]"), "line 2, column hash_ids: a block comes twice"),
    ],
)
def test_a_trace_that_does_not_tell_what_is_shared_is_refused_for_a_prefix_cache(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(SimulationError) as error:
        demand_of(
            written(tmp_path, text),
            duration_s=60.0,
            rate=5.0 if text == RATES else None,
            lengths=lognormal(1, 2),
            seed=1,
            prefixes=True,
        )
    assert says in str(error.value)


def test_a_shape_is_scaled_to_the_mean_and_squeezed_into_the_time(tmp_path: Path) -> None:
    path = written(tmp_path, RATES)
    assert is_rates(path)
    made = from_rates(read_rates(path), 400.0, 25.0, lognormal(100, 50), seed=1)
    assert len(made) / 400.0 == pytest.approx(25.0, rel=0.05)
    early = sum(r.at < 40 for r in made)
    middle = sum(180 <= r.at < 220 for r in made)
    assert middle > 1.8 * early  # the shape rises from 10 to 30 in its first half


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: there is nothing"),
        (AZURE.replace("ContextTokens", "Context"), "no column 'ContextTokens'"),
        (AZURE.replace("374", "many"), "line 2, column ContextTokens: 'many' is no number"),
        (AZURE.replace("109", "-1"), "line 3, column GeneratedTokens"),
        (AZURE.replace("109", "1.5"), "whole number from 0 up"),
        (AZURE.replace("396,109", "396"), "line 3: 2 values where the head line names 3"),
        (AZURE.replace("2023-11-16 18:15:50", "yesterday"), "line 3, column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request below the head line"),
        (MOONCAKE + "{\n", "line 3: this is no JSON"),
        (MOONCAKE.replace('"input_length": 7322, ', ""), "line 2: there is no 'input_length'"),
        (MOONCAKE.replace("7322", "true"), "line 2, column input_length"),
    ],
)
def test_a_broken_trace_names_the_place_and_the_cure(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SimulationError) as error:
        read_requests(written(tmp_path, text))
    assert says in str(error.value)
    assert "; " in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RATES.replace("1200,", "600,"), "line 4, column t_s: 600 does not come after 600"),
        (RATES.replace("30", "nan"), "line 3, column req_per_s"),
        ("t_s,req_per_s\n0,1\n", "two points"),
    ],
)
def test_a_broken_shape_names_the_place_and_the_cure(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        read_rates(written(tmp_path, text))


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="cannot be read"):
        read_requests(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(SimulationError, match="no text"):
        read_requests(tmp_path / "binary")


def test_what_does_not_fit_a_kind_of_file_is_refused(tmp_path: Path) -> None:
    lengths = lognormal(100, 50)
    path = written(tmp_path, RATES)
    with pytest.raises(SimulationError, match="--rate"):
        demand_of(path, duration_s=60.0, rate=None, lengths=lengths, seed=1)
    path = written(tmp_path, AZURE)
    with pytest.raises(SimulationError, match="--speed"):
        demand_of(path, duration_s=60.0, rate=5.0, lengths=lengths, seed=1)
    with pytest.raises(SimulationError, match="--start"):
        demand_of(path, start_s=1000.0, duration_s=60.0, rate=None, lengths=lengths, seed=1)


def test_a_trace_that_ends_early_ends_the_run(tmp_path: Path) -> None:
    """An hour of idle engines after it would only thin the figures."""
    path = written(tmp_path, MOONCAKE)

    def lasts(duration_s: float, speed: float) -> float:
        return demand_of(
            path, duration_s=duration_s, speed=speed, rate=None, lengths=lognormal(1, 2), seed=1
        ).duration_s

    assert lasts(3600.0, 1.0) == 3.0
    assert lasts(3600.0, 2.0) == 1.5
    assert lasts(2.0, 1.0) == 2.0


@given(
    times=st.lists(st.floats(0, 1000), max_size=60),
    start=st.floats(0, 500),
    duration=st.floats(1, 500),
    speed=st.floats(0.1, 10),
)
def test_a_cut_holds_what_comes_in_it_in_order_and_within_its_time(
    times: list[float], start: float, duration: float, speed: float
) -> None:
    made = cut([Request(t, 1, 1) for t in sorted(times)], start, duration, speed)
    assert len(made) == sum(start <= t < start + duration * speed for t in times)
    assert all(0.0 <= r.at <= duration * (1 + 1e-9) for r in made)
    assert [r.at for r in made] == sorted(r.at for r in made)


@pytest.mark.parametrize("name", [n for n, shape in SHAPES.items() if not shape.closed])
def test_a_seed_gives_the_same_requests_and_another_others(name: str) -> None:
    size = Size(300.0, 0, 4.0, 500, 100)
    one, again, other = (shaped(name, size, seed) for seed in (1, 1, 2))
    assert one.requests == again.requests != other.requests
    assert all(0 <= r.at < 300 for r in one.requests)
    whole = {"poisson": 4.0, "step": 8.0, "ramp": 13.0}[name]
    assert len(one.requests) / 300 == pytest.approx(whole, rel=0.15)


def test_lengths_have_the_means_that_were_asked_for() -> None:
    draw, rng = lognormal(1000, 200), random.Random(1)
    drawn = [draw(rng, 0.0) for _ in range(20_000)]
    assert sum(p for p, _ in drawn) / len(drawn) == pytest.approx(1000, rel=0.03)
    assert sum(o for _, o in drawn) / len(drawn) == pytest.approx(200, rel=0.03)


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "output"),
    [
        ("azure2023_conv.csv", 19_366, 1155, 211),
        ("azure2023_code.csv", 8_819, 2048, 28),
        ("mooncake_fast25_conversation.jsonl", 12_031, 12_035, 343),
    ],
)
def test_the_public_traces_have_the_figures_they_are_known_for(
    name: str, requests: int, prompt: float, output: float
) -> None:
    trace = Path(os.environ.get("LLAMASERVER_DATA", "none")) / "traces" / name
    if not trace.is_file():
        pytest.skip(f"{trace} is not there: docs/simulate.md says where LLAMASERVER_DATA's files are from")
    read = read_requests(trace)
    assert len(read) == requests
    assert sum(r.prompt for r in read) / len(read) == pytest.approx(prompt, rel=0.01)
    assert sum(r.output for r in read) / len(read) == pytest.approx(output, rel=0.02)

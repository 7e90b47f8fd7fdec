"""What a Prometheus has of engines: only samples of one scrape are put together, and each pod counts once."""

from __future__ import annotations

import re

import pytest

from llamaserver.observe import Sample, names, parse_exposition, read_series
from llamaserver.observe.scraped import interval, newest
from llamaserver.observe.series import Series
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from observe.samples import read, scraped


def engine_at(*times: float, running: int = 8) -> dict[float, str]:
    """What one engine says at these times."""
    made = Engine(CPU_24M)
    made.load(streams=running)
    texts = {}
    for at in times:
        made.run_until(at)
        texts[at] = speech.metrics(made)
    return texts


def sample_of(found: list[Series], pod: str = "m-0") -> Sample:
    scrape = newest(found)[pod]
    result = read_series(scrape.series, scrape.at, "uid/0")
    assert isinstance(result, Sample), result
    return result


def test_what_prometheus_tells_is_what_the_engine_said() -> None:
    texts = engine_at(10.0, 25.0)
    assert sample_of(scraped(texts, "m-0")) == parse_exposition(texts[25.0], 25.0, "uid/0")


def test_engines_of_one_pod_are_told_apart() -> None:
    text = read("v0.32.0_generated_dp2.prom")
    assert sample_of(scraped({5.0: text}, "m-0")) == parse_exposition(text, 5.0, "uid/0")


def test_series_without_a_pod_belong_to_nobody() -> None:
    (one, *_) = scraped(engine_at(10.0), "m-0")
    assert newest([Series({**one.labels, "pod": ""}, one.points), Series({}, one.points)]) == {}
    assert newest([Series(one.labels, [])]) == {}


def test_a_pod_that_is_scraped_twice_is_counted_once_and_by_the_newer() -> None:
    texts = engine_at(10.0, 11.0, 25.0, 26.0)
    one = scraped({at: texts[at] for at in (10.0, 25.0)}, "m-0", prometheus_replica="a")
    other = scraped({at: texts[at] for at in (11.0, 26.0)}, "m-0", prometheus_replica="b")
    assert sample_of([*one, *other]) == parse_exposition(texts[26.0], 26.0, "uid/0")


def test_a_scrape_that_is_only_partly_there_is_not_mixed_with_the_one_before() -> None:
    texts = engine_at(10.0, 25.0)
    whole = scraped(texts, "m-0")
    partly = [Series(s.labels, s.points if i < 3 else s.points[:1]) for i, s in enumerate(whole)]
    assert sample_of(partly) == parse_exposition(texts[10.0], 10.0, "uid/0")


def test_pods_are_read_each_by_its_own_newest_scrape() -> None:
    one, other = engine_at(10.0, 25.0), engine_at(8.0, 23.0, running=3)
    found = [*scraped(one, "m-0"), *scraped(other, "m-1")]
    assert (newest(found)["m-0"].at, newest(found)["m-1"].at) == (25.0, 23.0)
    assert sample_of(found, "m-1").engines[0].running == 3


@pytest.mark.parametrize("times", [(10.0, 25.0), (10.0, 25.0, 55.0), (10.0, 25.0, 28.0, 43.0)])
def test_the_interval_is_that_of_most_scrapes(times: tuple[float, ...]) -> None:
    assert interval(scraped(engine_at(*times), "m-0")) == 15.0


def test_the_interval_is_not_known_by_one_scrape() -> None:
    texts = engine_at(10.0)
    assert interval(scraped({10.0: texts[10.0]}, "m-0")) is None
    assert interval([]) is None


def test_prometheus_is_asked_for_what_a_scrape_is_read_for_and_nothing_else() -> None:
    asked = re.compile(f"^(?:{names.pattern()})$")
    assert all(asked.match(name) for name in names.exact_names())
    others = ("vllm:num_requests_running_total", "vllm:e2e_request_latency_seconds_bucket", "up")
    assert not any(asked.match(name) for name in others)
    suffixed = {f"{prefix}{name}_bucket" for prefix in names.PREFIXES for name in names.RUNNING}
    assert not any(asked.match(name) for name in suffixed)

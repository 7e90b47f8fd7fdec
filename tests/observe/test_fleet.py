"""The fleet's window: every token weighs the same, whichever pod it came from."""

from __future__ import annotations

from llamaserver.observe import Distribution, Failure, Memory, Sample, Unusable, Windows, advance, quantile
from llamaserver.observe.fleet import aggregate, merged
from observe.samples import engine, histogram, sample


def pods(*pairs: tuple[Sample, Sample | Failure]) -> dict[str, tuple[Sample, Sample | Failure]]:
    return {f"pod-{i}": pair for i, pair in enumerate(pairs)}


def windows(pairs: dict[str, tuple[Sample, Sample | Failure]]) -> Windows:
    memory, _ = advance(Memory(), {name: a for name, (a, _) in pairs.items()}, 10.0)
    return advance(memory, {name: b for name, (_, b) in pairs.items()}, 12.0)[1]


def test_quantiles_are_taken_after_adding() -> None:
    start = sample(10.0, itl=histogram(0, 0, 0, 0))
    quick = sample(12.0, itl=histogram(9000, 0, 0, 0), generation_tokens=9100, engines=(engine(running=30),))
    slow = sample(12.0, itl=histogram(0, 0, 1000, 0), generation_tokens=1100, engines=(engine(kv_usage=0.9),))
    fleet = aggregate(windows(pods((start, quick), (start, slow))))
    assert fleet.itl is not None
    assert fleet.itl.count == 10_000
    # A mean of the pods' medians would be near 24 ms; nine tokens in ten were at most 10 ms.
    assert quantile(fleet.itl, 0.5) == 0.01
    assert fleet.running == 34
    assert fleet.kv_usage == 0.9
    assert fleet.tokens_per_s == 5000.0


def test_a_blind_pod_is_counted_and_adds_nothing() -> None:
    start = sample(10.0)
    fleet = aggregate(windows(pods((start, Failure(12.0, Unusable.UNREACHABLE, "timeout")))))
    assert (fleet.pods, fleet.blind, fleet.itl) == (0, 1, None)


def test_an_exact_digest_is_not_mixed_with_a_histogram() -> None:
    exact = Distribution(2, 0.02, (0.01, 0.011, float("inf")), (0, 2, 0), exact=True)
    assert merged([histogram(0, 5, 0, 0), exact]) == exact

"""The law with a part of it taken away, by what a user may set or by what it is shown; the law knows nothing.

- `no-fast-loop`: tuning Off; engines run as they started, and the law sets the replicas alone.
- `no-slow-loop`: caps and budgets alone; the replicas stay what they were at the start.
- `no-feed-forward`: the engines tell no sums over their steps, so that no model of a step is ever learned and
  nothing can be computed beforehand: what is left answers to the measured latency.
- `no-kv-ceiling`: the engines do not tell how many tokens their caches hold.
"""

from __future__ import annotations

from dataclasses import replace

from llamaserver.api.enums import TuningMode
from llamaserver.observe import Sample
from llamaserver.simulate.policies import LAW, Policy, policies, policy


def without_steps(sample: Sample) -> Sample:
    return replace(
        sample, engines=tuple(replace(e, decode_steps=None, mixed_steps=None) for e in sample.engines)
    )


def without_cache(sample: Sample) -> Sample:
    return replace(sample, engines=tuple(replace(e, kv_capacity_tokens=None) for e in sample.engines))


_LAW = policy(LAW)
ABLATIONS = {
    p.name: p
    for p in (
        replace(_LAW, name="no-fast-loop", tuning=TuningMode.OFF),
        replace(_LAW, name="no-slow-loop", scales=False),
        replace(_LAW, name="no-feed-forward", shown=without_steps),
        replace(_LAW, name="no-kv-ceiling", shown=without_cache),
    )
}


def chosen(names: str) -> list[Policy]:
    """Policies and ablations by name, in the order given. Raises SimulationError for a name of neither."""
    parts = [part.strip() for part in names.split(",") if part.strip()]
    return [p for part in parts for p in ([ABLATIONS[part]] if part in ABLATIONS else policies(part))]

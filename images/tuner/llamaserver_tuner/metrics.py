"""The tuner's own metrics, on vLLM's /metrics.

With several API servers prometheus_client keeps every process's values in shared files: a gauge then shows
the newest one that any of them set. Names must not start with `vllm:`, which vLLM unregisters at will.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from llamaserver_tuner.setpoints import BUDGET, CAP

RESULTS = ("applied", "expired", "rejected", "unauthorized", "failed")


class TunerMetrics:
    """Gauges of what is in force and a counter of what became of changes."""

    def __init__(self, counts_expiry: bool = True, registry: Any = None) -> None:
        """Register the metrics, in the process's own registry unless told. `counts_expiry`: every process
        sees every lease end, and one of them counts it."""
        from prometheus_client import REGISTRY, Counter, Gauge

        registry = REGISTRY if registry is None else registry
        self._counts_expiry = counts_expiry
        self._expired_seen: dict[int, int] = {}
        self._gauges = {
            name: Gauge(
                f"llamaserver_{name}", text, ["engine"], multiprocess_mode="mostrecent", registry=registry
            )
            for name, text in (
                (CAP, "Admission cap in force: how many sequences the scheduler lets run at once."),
                ("max_num_seqs", "Sequences the engine was started for: the ceiling of the admission cap."),
                (BUDGET, "Token budget of one step in force."),
            )
        }
        self._retunes = Counter(
            "llamaserver_retunes", "Live changes by what became of them.", ["result"], registry=registry
        )
        for result in RESULTS:
            self._retunes.labels(result)

    def observe(self, engines: Iterable[dict[str, Any]]) -> None:
        """Show what was read back from the engines."""
        for engine in engines:
            if "retunes" not in engine:
                continue
            for name, gauge in self._gauges.items():
                gauge.labels(str(engine["engine"])).set(engine[name])
            expired = engine["retunes"]["expired"]
            new = expired - self._expired_seen.get(engine["engine"], 0)
            self._expired_seen[engine["engine"]] = expired
            if self._counts_expiry and new > 0:
                self._retunes.labels("expired").inc(new)

    def count(self, result: str) -> None:
        """Count the outcome of one PUT."""
        self._retunes.labels(result).inc()


@cache
def tuner_metrics(counts_expiry: bool = True) -> TunerMetrics:
    """Return this process's metrics; a name can be registered once."""
    return TunerMetrics(counts_expiry)

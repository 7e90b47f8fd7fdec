"""The operator's own Prometheus metrics. One registry per process, made explicitly so that tests have their
own.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FAST = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WRITE = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
"""A write waits for the engine's step to end, so it takes tens of milliseconds: finer there."""
_SERVER = ("namespace", "name")


class Metrics:
    """Every metric the operator has. Series of one LlamaServer end with `forget`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._per_server: dict[tuple[str, str], set[tuple[Gauge | Counter, tuple[str, ...]]]] = {}

        self.reconcile_seconds = self._histogram("reconcile_seconds", "Time of one reconcile pass.")
        self.reconciles = self._counter(
            "reconciles", "Reconcile passes by result: ok, invalid, retry or error.", "result"
        )
        self.tick_seconds = self._histogram("tick_seconds", "Time of one tick: scrape, decide, retune.")
        self.ticks = self._counter("ticks", "Ticks by result: ok or error.", "result")
        self.scrape_failures = self._counter(
            "scrape_failures", "Scrapes that gave no sample, by reason.", "reason"
        )
        self.retunes = self._counter(
            "operator_retunes",
            "Changes sent to engines by result: applied, unreachable or the refusal.",
            "result",
        )
        self.retune_seconds = self._histogram(
            "retune_seconds",
            "Round trip of a write that was applied: sent, applied and read back. Kind is change, or renewal "
            "where only a lease was renewed.",
            "kind",
            buckets=_WRITE,
        )
        self.api_calls = self._counter(
            "api_calls",
            "Calls to the Kubernetes API by outcome: ok or the error.",
            "verb",
            "resource",
            "outcome",
        )
        self.decisions = self._counter("decisions", "Decisions that changed something, by action.", "action")
        self.watch_restarts = self._counter(
            "watch_restarts", "Restarts of the watches after they failed or fell silent."
        )

        self.queue_depth = self._gauge("queue_depth", "Keys waiting to be reconciled now.")
        self.queue_oldest_seconds = self._gauge(
            "queue_oldest_age_seconds", "Age of the key that waits longest."
        )
        self.canary_seconds = self._gauge(
            "watch_canary_age_seconds",
            "How far the watches lag behind what the API server has answered directly.",
        )
        self.loop_lag_seconds = self._gauge(
            "loop_lag_seconds", "Largest delay of the event loop in the last 30 s."
        )
        self.is_leader = self._gauge("is_leader", "1 while this replica can prove that it leads.")
        self.watched = self._gauge("servers", "LlamaServers known to this replica.")

        self.slo_met = self._gauge("slo_met", "1 met, 0 violated, absent when not known.", *_SERVER)
        self.diagnosis = self._gauge("diagnosis", "1 for the cause that holds now.", *_SERVER, "cause")
        self.cap = self._gauge("cap_in_force", "Lowest cap in force over a LlamaServer's pods.", *_SERVER)
        self.itl_seconds = self._gauge(
            "observed_itl_seconds", "The declared statistic of the inter-token latency.", *_SERVER
        )
        self.running = self._gauge("requests_running", "Requests that a LlamaServer's engines run.", *_SERVER)
        self.waiting = self._gauge("requests_waiting", "Requests that wait in its engines.", *_SERVER)
        self.replicas = self._gauge("replicas_wanted", "Replicas the operator wants.", *_SERVER)

    def watch_live(
        self,
        *,
        depth: Callable[[], float],
        oldest: Callable[[], float],
        leads: Callable[[], float],
        servers: Callable[[], float],
    ) -> None:
        """Gauges that are read when asked for rather than kept up to date."""
        self.queue_depth.set_function(depth)
        self.queue_oldest_seconds.set_function(oldest)
        self.is_leader.set_function(leads)
        self.watched.set_function(servers)

    def set_server(self, gauge: Gauge, namespace: str, name: str, value: float | None, *more: str) -> None:
        """Set a LlamaServer's series, or (None) end it: what is not known has no value."""
        labels = (namespace, name, *more)
        known = self._per_server.setdefault((namespace, name), set())
        if value is not None:
            gauge.labels(*labels).set(value)
            known.add((gauge, labels))
        elif (gauge, labels) in known:
            known.discard((gauge, labels))
            gauge.remove(*labels)

    def set_cause(self, namespace: str, name: str, cause: str) -> None:
        """Exactly one cause holds for a LlamaServer at a time."""
        for gauge, labels in list(self._per_server.get((namespace, name), ())):
            if gauge is self.diagnosis and labels[2] != cause:
                self.set_server(self.diagnosis, namespace, name, None, labels[2])
        self.set_server(self.diagnosis, namespace, name, 1, cause)

    def forget(self, namespace: str, name: str) -> None:
        """End all series of a LlamaServer that is gone."""
        for gauge, labels in self._per_server.pop((namespace, name), ()):
            gauge.remove(*labels)

    def exposition(self) -> bytes:
        """The text format that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"llamaserver_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"llamaserver_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _FAST) -> Histogram:
        return Histogram(f"llamaserver_{name}", text, labels, registry=self.registry, buckets=buckets)

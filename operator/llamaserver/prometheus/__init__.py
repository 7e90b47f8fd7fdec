"""Somebody else's Prometheus: read, never written."""

from llamaserver.prometheus.client import Access, Prometheus, read_token
from llamaserver.prometheus.errors import PrometheusError
from llamaserver.prometheus.reading import Asked, Reading, read
from llamaserver.prometheus.source import CURES, DEADLINE_S, PrometheusSource

__all__ = [
    "CURES",
    "DEADLINE_S",
    "Access",
    "Asked",
    "Prometheus",
    "PrometheusError",
    "PrometheusSource",
    "Reading",
    "read",
    "read_token",
]

"""What is wrong between us and a Prometheus, and the cure."""

from __future__ import annotations


class PrometheusError(Exception):
    """A message for people: it names the option and what to do about it."""

"""What a time series database tells: label sets with their values over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One label set, the metric's name among the labels, and (seconds since the epoch, value)."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


Recorded = Mapping[str, Sequence[Series]]
"""Series by the metric's name without vLLM's prefix."""
SCRAPED_AT = "scraped_at"
"""The name under which `Recorded` has the times of the scrapes that the values at each step are from."""

"""Quantiles of a histogram in Prometheus' text format. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

LABEL = re.compile(r'(\w+)="([^"]*)"')


def buckets(text: str, name: str, **labels: str) -> list[tuple[float, float]]:
    """(Upper edge, cumulative count) of a histogram, its series with these labels added up; ordered by
    edge.
    """
    pattern = re.compile(rf"^{re.escape(name)}_bucket\{{(.*)\}}\s+(\S+)", re.MULTILINE)
    found: dict[float, float] = {}
    for written, count in pattern.findall(text):
        series = dict(LABEL.findall(written))
        if labels.items() <= series.items():
            edge = float(series["le"])
            found[edge] = found.get(edge, 0.0) + float(count)
    return sorted(found.items())


def quantile(ordered: Iterable[tuple[float, float]], q: float) -> float | None:
    """The q-quantile, interpolated linearly in its bucket, as Prometheus' histogram_quantile does.

    None for an empty histogram; the last finite edge for a value beyond it.
    """
    edges = list(ordered)
    total = edges[-1][1] if edges else 0.0
    if total <= 0:
        return None
    rank, below_edge, below = q * total, 0.0, 0.0
    for edge, count in edges:
        if count >= rank:
            if math.isinf(edge):
                return below_edge
            return below_edge + (edge - below_edge) * (rank - below) / max(count - below, 1e-12)
        below_edge, below = edge, count
    raise AssertionError("the last bucket of a histogram holds all its values")

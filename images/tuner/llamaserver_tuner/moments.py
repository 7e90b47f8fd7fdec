"""Exact sums over engine steps: all that a least-squares fit of the step's duration needs.

A step is described by three counts and a duration: `B` sequences that decoded, `K` tokens of KV cache that
its attention read, `P` prompt tokens that it prefilled, and `y` microseconds that it took. The sums of these
and of their products are the normal equations of `y ~ 1 + B + K + P`. They are Python integers: they do not
overflow and do not round, so two readings subtract to the exact sums of any window however long the engine
has run.
"""

from __future__ import annotations


class Moments:
    """Cumulative sums over steps. Never reset."""

    __slots__ = ("B", "BB", "BK", "BP", "By", "K", "KK", "KP", "Ky", "P", "PP", "Py", "n", "y", "yy")

    NAMES = ("n", "B", "K", "P", "y", "BB", "BK", "BP", "By", "KK", "KP", "Ky", "PP", "Py", "yy")

    def __init__(self) -> None:
        self.n = self.B = self.K = self.P = self.y = 0
        self.BB = self.BK = self.BP = self.By = 0
        self.KK = self.KP = self.Ky = 0
        self.PP = self.Py = self.yy = 0

    def add(self, decoding: int, kv_tokens: int, prefill_tokens: int, microseconds: int) -> None:
        """Count one step."""
        b, k, p, y = decoding, kv_tokens, prefill_tokens, microseconds
        self.n += 1
        self.B += b
        self.K += k
        self.y += y
        self.BB += b * b
        self.BK += b * k
        self.By += b * y
        self.KK += k * k
        self.Ky += k * y
        self.yy += y * y
        if p:
            self.P += p
            self.BP += b * p
            self.KP += k * p
            self.PP += p * p
            self.Py += p * y

    def to_json(self) -> dict[str, int]:
        """Return the form of the snapshot."""
        return {name: getattr(self, name) for name in self.NAMES}

"""A token bucket: bursts are fine, a lasting rate above the refill is not."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """`burst` tokens at first, refilled by `per_second`, never above `burst`."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()

    def take(self) -> bool:
        """Take a token if there is one."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def reserve(self) -> float:
        """Take a token in any case and return the seconds to wait until it is really there."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_second)

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now

"""The step meter: which steps are samples, and how long each of them took.

The duration of a step is the time between the ends of two consecutive `Scheduler.update_from_output` calls.
What that means in each of vLLM's loops:

- Synchronous loop: schedule, execute, update, in turn. The interval holds exactly one step with its host
  work, and is the inter-token latency that the step's sequences see.
- Asynchronous scheduling (a batch queue of two): step i + 1 is scheduled and queued while step i runs. The
  interval that ends with step i's output is the longer of the device's time for step i and the host's time
  per step: again the inter-token latency. It is paired with what step i held, because outputs come in the
  order of scheduling.
- Pipeline parallelism (a batch queue as deep as the pipeline): the interval is the time of one micro-batch in
  the slowest stage. A sequence is in every p-th micro-batch, so its inter-token latency is the sum of p
  intervals.

Not every step is a sample. The first one after idleness has no predecessor; a step in which somebody was
preempted, an encoder ran, or KV was loaded from elsewhere did work that the counts do not describe; and an
interval in which the host did not even ask for a step (a pause, a sleeping engine, a long utility call) is
not the step's. These are counted as skipped and nothing else is done with them.
"""

from __future__ import annotations

from typing import NamedTuple

from llamaserver_tuner.moments import Moments

MAX_HOST_GAP_US = 100_000
"""The longest time between an output and the next call to schedule() that still belongs to a step. In a busy
engine the gap is well below a millisecond; a tenth of a second is a pause, not load."""


class StepShape(NamedTuple):
    """What one step held. All counts; `clean` is False when it did work that the counts do not describe."""

    decoding: int
    kv_tokens: int
    prefill_tokens: int
    clean: bool


class StepMeter:
    """Cumulative moments of the valid steps, decode-only and mixed apart. Times are integer microseconds."""

    __slots__ = ("_last_output_us", "_scheduled_us", "decode", "mixed", "skipped")

    def __init__(self) -> None:
        self.decode = Moments()
        self.mixed = Moments()
        self.skipped = 0
        self._last_output_us: int | None = None
        self._scheduled_us = 0

    def scheduled(self, now_us: int) -> None:
        """Note that the engine asks for a step."""
        self._scheduled_us = now_us

    def output(self, now_us: int, shape: StepShape | None, idle: bool) -> None:
        """Note that a step's output was processed.

        `shape` is None when the step held nothing. `idle` says that nothing is running after it, so that the
        time until the next output is not a step's.
        """
        last, self._last_output_us = self._last_output_us, None if idle else now_us
        if shape is None:
            return
        if last is None or not shape.clean or self._scheduled_us - last > MAX_HOST_GAP_US:
            self.skipped += 1
            return
        decoding, kv_tokens, prefill_tokens, _ = shape
        moments = self.mixed if prefill_tokens else self.decode
        moments.add(decoding, kv_tokens, prefill_tokens, now_us - last)

    def to_json(self) -> dict[str, object]:
        """Return the form of the snapshot."""
        return {"decode": self.decode.to_json(), "mixed": self.mixed.to_json(), "skipped": self.skipped}

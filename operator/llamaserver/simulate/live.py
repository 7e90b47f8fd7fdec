"""The plant on somebody else's clock: requests come one by one, and a step ends when the caller says so.

For whoever stands between the plant and real clients. From `begin` to `end` the engine is in a step, which
lasts as long as the caller lets it. What a client leaves is dropped between two steps, as in vLLM.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.sequence import Sequence, Step


class Begun(NamedTuple):
    """A step under way."""

    step: Step
    admitted: list[Sequence]
    """Those that left the queue for the first time."""
    decoding: list[Sequence]
    preempted: int


class Ended(NamedTuple):
    """Who got a token in the step, in the order of the batch; and who has all of its tokens now."""

    decoded: list[Sequence]
    prefilled: list[Sequence]
    """Whose prompt is through: a first token, or the one after a preemption."""
    finished: list[Sequence]


class LiveEngine(Engine):
    """One engine core whose time is told by the caller, in seconds of any clock that only rises."""

    def __init__(self, profile: Profile, *, seed: int, start: float, step_noise: float = 0.04) -> None:
        super().__init__(profile, seed=seed, start=start, step_noise=step_noise)
        self._prefilled: list[Sequence] = []
        self._finished: list[Sequence] = []

    def ask(self, now: float, prompt: int, output: int, most: int) -> Sequence:
        """A request that comes now, of `prompt` tokens; it generates `output` and may generate `most`.

        The caller has asked `profile.takes` before: what may get too long is never in the queue.
        """
        assert 1 <= output <= most
        assert self.profile.takes(prompt, most)
        sequence = Sequence(prompt, output, now, prompt, most)
        self.arrived += 1
        self.waiting.append(sequence)
        return sequence

    def drop(self, sequence: Sequence) -> None:
        """Forget a request that waits or runs, between two steps; one that has ended is let be."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.prefilled >= sequence.to_prefill:
            sequence.generated = self.generated(sequence)
            self.decoding -= 1
            self.kv -= sequence.prompt + sequence.generated
        else:
            self.kv -= sequence.prefilled
        del self.running[sequence]
        sequence.alive += 1

    def begin(self, now: float) -> Begun:
        """Schedule the next step. There must be something to do."""
        assert not self.idle
        self.now = now
        before = self.preemptions
        step = self._begin()
        admitted = [s for s, _ in step.chunks if s.admitted_at == now and s.prefilled == 0]
        return Begun(step, admitted, list(islice(self.running, step.batch)), self.preemptions - before)

    def end(self, begun: Begun, now: float) -> Ended:
        """The step ends now, whatever its nominal duration was."""
        self._end(begun.step._replace(seconds=now - self.now))
        for sequence in self._prefilled:
            if sequence.generated >= sequence.output:
                self._finish(sequence)
        # What the plant keeps for its reports would grow for as long as the server lives.
        for record in (self.log, self.gaps, self.answers, self.waits, self.queued):
            record.clear()
        ended = Ended(begun.decoding, self._prefilled, self._finished)
        self._prefilled, self._finished = [], []
        return ended

    def _first_token(self, s: Sequence) -> None:
        super()._first_token(s)
        self._prefilled.append(s)

    def _finish(self, s: Sequence) -> None:
        super()._finish(s)
        self._finished.append(s)

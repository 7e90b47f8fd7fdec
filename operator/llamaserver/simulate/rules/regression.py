"""How long a step takes by what is in it, as NVIDIA Dynamo's planner learns it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean

from llamaserver.simulate.rules.seen import ReplicaSeen

Step = tuple[float, float, float]
"""(prefill tokens, resident tokens of the decoding sequences, seconds)."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Dynamo's regression for engines that prefill and decode in the same steps, with its defaults:
    seconds = w0 + w1 prefill tokens + w2 resident tokens, by least squares.

    Of at most `keep` observations those from the fullest of `cells` x `cells` parts of the range go first, so
    that steady traffic does not push out what was seen of other loads. A fit with a negative weight is none,
    and so is one of less than `least`. Means of a tick stand for the single steps that its engines report.
    """

    keep: int = 64
    cells: int = 4
    least: int = 5
    seen: tuple[Step, ...] = ()
    prompt: float = 0.0
    """Tokens of a prompt, on average; smoothed over the observations."""
    length: float = 0.0
    """Resident tokens of a decoding sequence."""
    prefill: float = 0.0
    """Prefill tokens of a step."""

    def add(self, pod: ReplicaSeen) -> Steps:
        if not pod.steps:
            return self
        seen = (*self.seen, (pod.prefill, pod.resident, pod.step_s))
        if len(seen) > self.keep:
            seen = self._without_one(seen)
        prompt = pod.traffic.mean_prompt if pod.traffic.finished else self.prompt
        length = pod.resident / pod.decoding if pod.decoding else self.length
        return replace(
            self,
            seen=seen,
            prompt=self._smoothed(self.prompt, prompt),
            length=self._smoothed(self.length, length),
            prefill=fmean(p for p, _, _ in seen),
        )

    def _smoothed(self, before: float, value: float) -> float:
        return value if before == 0.0 else before + (value - before) / min(self.keep, len(self.seen) + 1)

    def _without_one(self, seen: tuple[Step, ...]) -> tuple[Step, ...]:
        def cell(step: Step) -> tuple[int, int]:
            return self._part(step[0], [s[0] for s in seen]), self._part(step[1], [s[1] for s in seen])

        where = [cell(step) for step in seen]
        fullest = Counter(where).most_common(1)[0][0]
        oldest = where.index(fullest)
        return (*seen[:oldest], *seen[oldest + 1 :])

    def _part(self, value: float, values: list[float]) -> int:
        low, high = min(values), max(values)
        return 0 if high <= low else min(self.cells - 1, int((value - low) / (high - low) * self.cells))

    def fit(self) -> Fit | None:
        if len(self.seen) < self.least:
            return None
        p0, k0, y0 = (fmean(step[i] for step in self.seen) for i in range(3))
        pp = sum((p - p0) ** 2 for p, _, _ in self.seen)
        kk = sum((k - k0) ** 2 for _, k, _ in self.seen)
        pk = sum((p - p0) * (k - k0) for p, k, _ in self.seen)
        py = sum((p - p0) * (y - y0) for p, _, y in self.seen)
        ky = sum((k - k0) * (y - y0) for _, k, y in self.seen)
        determinant = pp * kk - pk * pk
        if determinant > 1e-9 * max(1e-12, pp * kk):
            w1, w2 = (kk * py - pk * ky) / determinant, (pp * ky - pk * py) / determinant
        else:
            w1, w2 = (py / pp if pp > 0.0 else 0.0), (ky / kk if pp == 0.0 and kk > 0.0 else 0.0)
        if min(w1, w2) < 0.0:
            return None
        return Fit(self, y0 - w1 * p0 - w2 * k0, w1, w2)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted regression, and what Dynamo estimates with it. Times in seconds."""

    steps: Steps
    w0: float
    w1: float
    w2: float

    def step_s(self, prefill: float, resident: float) -> float:
        return max(1e-6, self.w0 + self.w1 * prefill + self.w2 * resident)

    def ttft_s(self, queued: float, resident: float, budget: int) -> float:
        """Until a request that comes now has its first token: whole budgets of what is queued and its own."""
        left = queued + self.steps.prompt
        whole = math.floor(left / budget)
        rest = left - whole * budget
        return whole * self.step_s(budget, resident) + (self.step_s(rest, resident) if rest > 0.0 else 0.0)

    def itl_s(self, resident: float) -> float:
        """The next step's, with one more sequence."""
        return self.step_s(self.steps.prefill, resident + self.steps.length)

    def rate(self, prompt: float, output: float, pod: ReplicaSeen, ttft_s: float, itl_s: float) -> float:
        """Requests per second of one engine at the largest batch that holds both targets; at a batch of one
        where none does.
        """
        context, budget = prompt + output / 2.0, pod.budget or 1
        most = min(
            int((pod.kv_tokens or 1024 * context) / max(1.0, context)),
            pod.max_num_seqs or 1024,
            int(output * budget / (prompt + output)),
        )
        best = 0.0
        for batch in range(1, max(1, most) + 1):
            resident, prefill = batch * context, min(batch * prompt / output, budget)
            took = self.step_s(prefill, resident)
            if took > itl_s or self.ttft_s(prefill, resident, budget) > ttft_s:
                return best or batch / (output * took)
            best = batch / (output * took)
        return best

"""One continuous-batching engine, step by step, in virtual time.

Prompts are prefilled in chunks within the token budget; admission keeps to the cap and to the KV cache; when
the cache is full the newest sequence is preempted and recomputed. Steps last as the profile says, with noise
per step and, if wanted, noise that a whole second shares. Everything is drawn from one seeded generator.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque

from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.lengths import Allowed, Lengths, to_the_end, words
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.sequence import Sequence, Step
from llamaserver.simulate.tally import ITL_EDGES, QUEUE_EDGES, Histogram, Moments, Tally, length_edges

STALL_S = 0.02
"""How long a held-up step waits for the processor, on average."""
REFUSED_IN_A_ROW = 1000
"""After so many requests of a closed loop that were refused one after another none is taken for possible."""


def too_long(profile: Profile) -> SimulationError:
    """What to say where every request is refused."""
    return SimulationError(
        f"every request is longer than the {profile.longest} tokens that this engine serves, and is refused: "
        "ask for shorter ones, or raise max_model_len and kv_tokens of the profile"
    )


class Engine:
    """One pod with one engine core. `run_until` moves it; `snapshot`, `metrics` and `put` are its doors."""

    def __init__(
        self,
        profile: Profile,
        lengths: Lengths = words,
        *,
        allowed: Allowed = to_the_end,
        seed: int = 1,
        start: float = 0.0,
        step_noise: float = 0.04,
        slow_noise: float = 0.0,
        stalls: float = 0.0,
        live_budget: str = "",
        chunk_reserve: int = 0,
    ) -> None:
        self.profile, self.lengths, self.allowed = profile, lengths, allowed
        self.longest = profile.longest
        self.rng = random.Random(seed)
        self.step_noise, self.slow_noise = step_noise, slow_noise
        self.live_budget, self.chunk_reserve = live_budget, chunk_reserve
        self.stalls = stalls
        """Share of steps held up by something else on the machine, on average; it comes and goes."""
        self.stalled, self.stalled_until = 0.0, start
        self.now = start
        self.streams = 0
        self.rate = 0.0
        self.next_arrival = math.inf
        self.level, self.level_until = 1.0, start
        self.preempted_ever = 0
        self.refused_ever = 0
        """Requests that may get longer than the model allows: as in vLLM, they are never in the queue."""
        self.boots = 0
        self.log: list[tuple[float, float, int]] = []
        """(time, step seconds, decoding sequences) of every step."""
        self.gaps: list[tuple[float, float, int]] = []
        """(time, seconds since the one before, 1) of every first token after a preemption."""
        self.answers: list[tuple[float, float, int]] = []
        """(time, seconds per output token after the first, 1) of every request that ended and had more."""
        self.waits: list[tuple[float, float]] = []
        """(time, seconds from arrival) of every first token."""
        self.queued: list[tuple[float, float]] = []
        """(time, seconds from arrival) of every first admission."""
        self.coming: deque[Sequence] = deque()
        """What was submitted and has not come yet."""
        self.reset()

    def reset(self) -> None:
        """A container restart: new boot, counters at zero, all requests gone."""
        self.boots += 1
        self.cap = self.profile.max_num_seqs
        self.budget = self.profile.budget
        self.lease_until = math.inf
        self.generation = 0
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        """In the order of their admission. Keys only: what ends is taken out of the middle at once."""
        self.decoding = 0
        self.decodes = 0
        self.kv = 0
        self.saved = 0
        """Of the tokens in `kv` those that a prefix cache has once for several sequences, see prefixes.py."""
        self.prefix_queries = self.prefix_hits = self.cached_prompt_tokens = 0
        self.ending: defaultdict[int, list[tuple[Sequence, int]]] = defaultdict(list)
        """Sequences by the count of steps at which they have all of their tokens, with their life then."""
        self.moments = {"decode": Moments(), "mixed": Moments()}
        self.itl, self.ttft = Tally(ITL_EDGES), Tally(ITL_EDGES)
        self.queue, self.tpot = Tally(QUEUE_EDGES), Tally(ITL_EDGES)
        edges = length_edges(self.longest)
        self.prompts, self.outputs = Histogram(edges), Histogram(edges)
        """Lengths of the requests that have ended."""
        self.preemptions = self.arrived = self.finished = 0
        self.prompt_tokens = self.generation_tokens = 0
        self.bounded_finished = self.bounded_most = self.bounded_out = 0
        self.live_streams = 0
        self.clean = False

    # --- load -----------------------------------------------------------------------------------------------
    def load(self, *, streams: int = 0, rate: float = 0.0) -> None:
        """`streams` closed-loop clients without a pause, and Poisson arrivals of `rate` per second."""
        self.streams = streams
        if rate != self.rate:
            self.rate = rate
            self.next_arrival = self.now + self.rng.expovariate(rate) if rate > 0 else math.inf

    def _asked(
        self, at: float, prompt: int, output: int, stream: bool = False, hash_ids: tuple[int, ...] = ()
    ) -> Sequence | None:
        """A request with what it may generate; None, and counted, where vLLM refuses it."""
        output, room = max(2, output), self.longest - prompt
        allowed = self.allowed(output)
        most = room if allowed is None else max(output, allowed)
        if most < 2 or most > room:
            self.refused_ever += 1
            return None
        return Sequence(prompt, min(output, most), at, prompt, most, stream=stream, hash_ids=hash_ids)

    def _arrive(self, stream: bool) -> bool:
        """Whether a request came and was not refused."""
        prompt, output = self.lengths(self.rng, self.now)
        asked = self._asked(self.now, prompt, output, stream)
        if asked is None:
            return False
        self.arrived += 1
        self.waiting.append(asked)
        self.live_streams += stream
        return True

    def submit(self, at: float, prompt: int, output: int, hash_ids: tuple[int, ...] = ()) -> None:
        """A request that comes at `at`, not before those submitted already."""
        asked = self._asked(at, prompt, output, hash_ids=hash_ids)
        if asked is not None:
            self.coming.append(asked)

    def close(self) -> list[Sequence]:
        """Takes nothing new any more. Returns what was not begun and comes from no closed-loop client."""
        self.load()
        left = [s for s in (*self.waiting, *self.coming) if not s.admitted and not s.stream]
        self.waiting = deque(s for s in self.waiting if s.admitted)
        self.coming.clear()
        return left

    @property
    def in_hand(self) -> int:
        """Requests that are here or on their way here."""
        return len(self.running) + len(self.waiting) + len(self.coming)

    @property
    def idle(self) -> bool:
        return self.in_hand == 0

    def _arrivals(self) -> None:
        in_a_row = 0
        while self.live_streams < self.streams:
            in_a_row = 0 if self._arrive(True) else in_a_row + 1
            if in_a_row >= REFUSED_IN_A_ROW:
                raise too_long(self.profile)
        while self.next_arrival <= self.now:
            self._arrive(False)
            self.next_arrival += self.rng.expovariate(self.rate)
        while self.coming and self.coming[0].arrived <= self.now:
            self.arrived += 1
            self.waiting.append(self.coming.popleft())

    # --- steps ----------------------------------------------------------------------------------------------
    def run_until(self, until: float) -> None:
        """Steps until the clock has reached `until`; the last step may end after it."""
        while self.now < until:
            self._arrivals()
            if self.now >= self.lease_until:
                self.cap, self.budget = self.profile.max_num_seqs, self.profile.budget
                self.lease_until = math.inf
            if not self.running and not self.waiting:
                self.clean = False
                soonest = self.coming[0].arrived if self.coming else math.inf
                self.now = min(until, self.next_arrival, soonest)
                continue
            self._end(self._begin())

    def _preempt(self, victim: Sequence) -> None:
        victim.alive += 1
        if victim.prefilled >= victim.to_prefill:
            victim.generated += self.decodes - victim.began_at
            victim.last_token = self.now
            self.decoding -= 1
            self.kv -= victim.prompt + victim.generated
        else:
            self.kv -= victim.prefilled
        victim.to_prefill, victim.prefilled = victim.prompt + victim.generated, 0
        self.waiting.appendleft(victim)
        self.preemptions += 1
        self.preempted_ever += 1
        self.clean = False

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], int]:
        """The prefill chunks of the next step and their sum.

        vLLM serves the running sequences in the order of their admission. That is the same as all decodes
        first: a prompt is only cut where the budget ends, and then nobody is admitted behind it, so the one
        that is still being prefilled is always the last. A prompt is admitted when all of it fits the cache.
        """
        room = self.profile.kv_tokens + self.saved - self.kv - self.decoding
        while room < 0 and len(self.running) > 1:
            self._preempt(self.running.popitem()[0])
            room = self.profile.kv_tokens + self.saved - self.kv - self.decoding
        # As the tuner does it: while a lowered cap drains, every sequence keeps its token.
        in_force = min(self.profile.budget, self.budget + max(0, len(self.running) - self.cap))
        budget = left = in_force - self.decoding
        chunks: list[tuple[Sequence, int]] = []
        if len(self.running) > self.decoding:
            newest = next(reversed(self.running))
            rest = newest.to_prefill - newest.prefilled
            if left > 0:
                take = min(left, rest)
                chunks.append((newest, take))
                left -= take
            room -= rest
        while self.waiting and left > 0 and len(self.running) < self.cap:
            s = self.waiting[0]
            needs = self._needs(s)
            if needs > room:
                break
            self._admit(self.waiting.popleft())
            take = min(left, s.to_prefill - s.prefilled)
            chunks.append((s, take))
            left -= take
            room -= needs
        return chunks, budget - left

    def _needs(self, s: Sequence) -> int:
        """KV tokens that have to be free for a waiting sequence."""
        return s.to_prefill

    def _admit(self, s: Sequence) -> None:
        self.running[s] = None
        if not s.admitted:
            s.admitted, s.admitted_at = True, self.now
            waited = self.now - s.arrived
            self.queue.add(waited)
            self.queued.append((self.now, waited))

    def _noise(self) -> float:
        if self.slow_noise and self.now >= self.level_until:
            self.level, self.level_until = max(0.5, self.rng.gauss(1.0, self.slow_noise)), self.now + 1.0
        return self.level * max(0.5, self.rng.gauss(1.0, self.step_noise))

    def _stall(self) -> float:
        """Seconds that a step waits for the processor."""
        if self.now >= self.stalled_until:
            self.stalled, self.stalled_until = self.stalls * self.rng.expovariate(1.0), self.now + 4.0
        return self.rng.expovariate(1 / STALL_S) if self.rng.random() < self.stalled else 0.0

    def _begin(self) -> Step:
        """Schedules a step and draws how long it takes; the clock stands still."""
        chunks, prefill = self._schedule()
        batch, resident = self.decoding, self.kv
        y = self.profile.step_s(batch, resident, prefill) * self._noise()
        if self.stalls:
            y += self._stall()
        return Step(chunks, batch, resident, prefill, y)

    def _end(self, step: Step) -> None:
        """The step is over: its tokens are there."""
        chunks, batch, resident, prefill, y = step
        self.now += y
        self.log.append((self.now, y, batch))
        if batch and self.clean:
            self.moments["mixed" if prefill else "decode"].add(batch, resident, prefill, round(y * 1e6))
        self.clean = True
        self.decodes += 1
        if batch:
            self.itl.add(y, batch)
            self.generation_tokens += batch
            self.kv += batch
        # Whom the step before gave the last token with a prompt computed anew, then whom this one did.
        for s, alive in (*self.ending.pop(self.decodes - 1, ()), *self.ending.pop(self.decodes, ())):
            if s.alive == alive:
                self._finish(s)
        for s, take in chunks:
            s.prefilled += take
            self.kv += take
            if s.prefilled >= s.to_prefill:
                self._first_token(s)

    def _first_token(self, s: Sequence) -> None:
        """The prompt is through: the first token, or the one after a preemption."""
        if s.generated == 0:
            waited = self.now - s.arrived
            self.ttft.add(waited)
            self.waits.append((self.now, waited))
            self.prompt_tokens += s.prompt
            s.first_token = self.now
        else:
            gap = self.now - s.last_token
            self.itl.add(gap)
            self.gaps.append((self.now, gap, 1))
        s.generated += 1
        s.last_token = self.now
        s.began_at = self.decodes
        self.kv += 1
        self.generation_tokens += 1
        self.decoding += 1
        left = max(0, s.output - s.generated)
        self.ending[self.decodes + left].append((s, s.alive))

    def _finish(self, s: Sequence) -> None:
        s.alive += 1
        s.generated += self.decodes - s.began_at
        del self.running[s]
        self.decoding -= 1
        self.kv -= s.prompt + s.generated
        self.finished += 1
        self.prompts.add(s.prompt)
        self.outputs.add(s.generated)
        if self.bounded(s):
            self.bounded_finished += 1
            self.bounded_most += s.most
            self.bounded_out += s.generated
        if s.generated > 1:
            pace = (self.now - s.first_token) / (s.generated - 1)
            self.tpot.add(pace)
            self.answers.append((self.now, pace, 1))
        self.live_streams -= s.stream

    def bounded(self, s: Sequence) -> bool:
        """Whether a request may generate less than the model's length leaves."""
        return s.prompt + s.most < self.longest

    def generated(self, s: Sequence) -> int:
        """The tokens that a sequence in the engine has generated so far."""
        return s.generated + (self.decodes - s.began_at if s.prefilled >= s.to_prefill else 0)

    @property
    def used(self) -> int:
        """KV tokens that sequences hold."""
        return self.kv - self.saved

    # --- doors ----------------------------------------------------------------------------------------------
    def put(self, cap: int | None, lease_s: float = 120.0, budget: int | None = None) -> None:
        """A change as the tuner takes it: None is the start value. Out of its bounds is a fault of the
        caller.
        """
        assert cap is None or 1 <= cap <= self.profile.max_num_seqs
        self.cap = self.profile.max_num_seqs if cap is None else cap
        assert budget is None or self.cap + self.chunk_reserve <= budget <= self.profile.budget
        self.budget = self.profile.budget if budget is None else budget
        self.lease_until = self.now + lease_s
        self.generation += 1

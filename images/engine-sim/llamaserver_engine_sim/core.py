"""The engine core in real time: one task that begins a step, waits as long as it lasts, hands out its tokens.

Nothing runs while there is nothing to do. A step that ends late is told as long as it was, and the next one
begins when it was due, so that the pace is the profile's and not that of the machine's timers. Who falls
behind by more than a step starts afresh.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from llamaserver.simulate.live import Begun, Ended, LiveEngine
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.sequence import Sequence
from llamaserver_engine_sim.metrics import VllmMetrics
from llamaserver_engine_sim.port import PlantPort
from llamaserver_engine_sim.statistics import FinishedRequest, IterationStats
from llamaserver_tuner.engine import EngineTuner
from llamaserver_tuner.meter import StepShape
from llamaserver_tuner.totals import Collected


@dataclass(eq=False, slots=True)
class Generation:
    """One request on its way through the engine, as the front end sees it. Times on the monotonic clock."""

    sequence: Sequence
    made: int = 0
    """Tokens so far."""
    reason: str = ""
    """Why it ended; empty while it has not."""
    first_at: float = 0.0
    last_at: float = 0.0
    _waiter: asyncio.Future[None] | None = None

    async def beyond(self, tokens: int) -> tuple[int, str]:
        """Wait for more than so many tokens, or the end; return how many there are, and why it ended.

        Tokens that came while nobody asked are told together, as vLLM joins them for a slow client.
        """
        while self.made <= tokens and not self.reason:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.made, self.reason

    async def end(self) -> tuple[int, str]:
        """Wait for the end."""
        while not self.reason:
            await self.beyond(self.made)
        return self.made, self.reason

    def wake(self) -> None:
        """Let the one who waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finished(self, reason: str, now: float) -> FinishedRequest:
        """What is said of it at its end."""
        s = self.sequence
        admitted_at = s.admitted_at if s.admitted else now
        first_at = self.first_at or now
        return FinishedRequest(
            finish_reason=reason,
            num_prompt_tokens=s.prompt,
            num_generation_tokens=self.made,
            max_tokens_param=s.most,
            e2e_latency=now - s.arrived,
            queued_time=admitted_at - s.arrived,
            prefill_time=first_at - admitted_at,
            decode_time=self.last_at - self.first_at,
        )


class Core:
    """One engine. `run` is its loop; everything else is called from the same event loop."""

    def __init__(self, profile: Profile, model: str, seed: int) -> None:
        self.plant = LiveEngine(profile, seed=seed, start=time.monotonic())
        self.tuner = EngineTuner(PlantPort(self.plant), 0)
        self.collected = Collected()
        self.collected.start([0], profile.longest)
        self.metrics = VllmMetrics(model, self.plant)
        self.sleep_level = 0
        self._generations: dict[Sequence, Generation] = {}
        self._leaving: list[Sequence] = []
        """Left by their clients while a step was under way."""
        self._stepping = False
        self._awake = asyncio.Event()

    def ask(self, prompt: int, output: int, most: int) -> Generation:
        """A request of `prompt` tokens that generates `output` and may generate `most`."""
        sequence = self.plant.ask(time.monotonic(), prompt, output, most)
        self.tuner.arrived += 1
        generation = self._generations[sequence] = Generation(sequence)
        self._awake.set()
        return generation

    def leave(self, generation: Generation) -> None:
        """The client is gone. Nothing happens to what has ended."""
        if self._generations.pop(generation.sequence, None) is None:
            return
        now = time.monotonic()
        self._count(IterationStats(finished_requests=[generation.finished("abort", now)]))
        generation.reason = "abort"
        generation.wake()
        self._leaving.append(generation.sequence)
        if not self._stepping:
            self._drop()

    def leave_all(self) -> None:
        """Abort everything."""
        for generation in list(self._generations.values()):
            self.leave(generation)

    def sleep(self, level: int) -> None:
        """Abort what is here and make no step until `wake`, as vLLM does by default."""
        self.sleep_level = level
        self.leave_all()
        self.metrics.asleep(level)

    def wake(self) -> None:
        """Go on."""
        self.sleep_level = 0
        self.metrics.asleep(0)
        self._awake.set()

    async def run(self) -> None:
        """Step for ever."""
        due = time.monotonic()
        while True:
            if self.plant.idle or self.sleep_level:
                self._awake.clear()
                await self._awake.wait()
                due = time.monotonic()
                continue
            due = await self._step(due)

    async def _step(self, due: float) -> float:
        """One step that was due to begin at `due`; return when the next one is."""
        self.tuner.before_step()
        began = self.plant.begin(max(due, self.plant.now))
        self._stepping = True
        due += began.step.seconds
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        ended = self.plant.end(began, max(now, self.plant.now))
        self._stepping = False
        self._meter(began, now)
        self._deliver(ended, now)
        self._drop()
        return due if now - due < began.step.seconds else now

    def _drop(self) -> None:
        for sequence in self._leaving:
            self.plant.drop(sequence)
        self._leaving.clear()

    def _meter(self, began: Begun, now: float) -> None:
        batch, prefill = began.step.batch, began.step.prefill
        for sequence in began.admitted:
            self.tuner.queue.add(sequence.admitted_at - sequence.arrived)
        self.tuner.preemptions = self.plant.preemptions
        context = began.step.resident + batch + prefill
        shape = StepShape(batch, context, prefill, clean=not began.preempted)
        self.tuner.meter.output(int(now * 1e6), shape, idle=not self.plant.running)
        self.metrics.step(batch, prefill, began.preempted)

    def _deliver(self, ended: Ended, now: float) -> None:
        stats = IterationStats()
        for sequence in (*ended.decoded, *ended.prefilled):
            generation = self._generations.get(sequence)
            if generation is not None:
                self._token(generation, stats, now)
        for sequence in ended.finished:
            generation = self._generations.pop(sequence, None)
            if generation is not None:
                generation.reason = "length" if sequence.output == sequence.most else "stop"
                stats.finished_requests.append(generation.finished(generation.reason, now))
        self._count(stats)

    def _token(self, generation: Generation, stats: IterationStats, now: float) -> None:
        if generation.made:
            stats.inter_token_latencies_iter.append(now - generation.last_at)
        else:
            generation.first_at = now
            stats.time_to_first_tokens_iter.append(now - generation.sequence.arrived)
            stats.prompt_token_stats.total += generation.sequence.prompt
        generation.made += 1
        generation.last_at = now
        stats.num_generation_tokens += 1
        generation.wake()

    def _count(self, stats: IterationStats) -> None:
        self.collected.add(0, stats)
        self.metrics.record(stats)

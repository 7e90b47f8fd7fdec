"""One scenario on one server: the load runs without a break while policies take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from bench.engine import client, fix, read, seen, target_of
from bench.figures import STATISTIC, Figures, Seen, figures, parts, requests_per_s, summary
from bench.objective import Rule
from bench.ours import Ours
from bench.plan import (
    CALIBRATION_SLOTS,
    DEFAULT,
    WARM_S,
    Pair,
    Wanted,
    Work,
    coarse_grid,
    default_repeats,
    is_cap,
    kinds,
    pick,
    refine,
    rounds_s,
)
from bench.scenarios import Part, Scenario
from bench.variants import VARIANTS
from harness.loopback import MODEL, Loopback
from harness.traffic import FLUSH_S, Traffic
from llamaserver.api.enums import Statistic
from llamaserver.control import Objective
from llamaserver.engine import SigningKey

LEAST_REFINED = 2
MOST_CONFIRMED = 2
"""Times the repeats wanted: after so many the best is what it is."""
DRAIN_LOOK_S, MOST_DRAIN_S = 0.5, 10.0
FILL_S = 8.0
"""The first requests' way into the batch, before the first slot."""
PLAN = "plan.json"
"""In a scenario's folder: what a governor in the engine reads."""
Say = Callable[[str], None]


@dataclass
class Measured:
    """What is known of a scenario so far."""

    scenario: Scenario
    points: dict[Pair, list[Figures]] = field(default_factory=dict)
    """Fixed settings, `DEFAULT` among them."""
    variants: dict[str, list[Figures]] = field(default_factory=dict)
    swept: int = 0
    """Settings that the sweep tried."""
    default_p50_ms: float | None = None
    """As the objective was made from it."""
    default_tail_ms: float | None = None
    target_ms: float | None = None
    statistic: str = STATISTIC
    """That the objective is about."""
    repeats: int = 0
    """Wanted of every policy."""
    streams: int = 0
    cut: int = 0
    load_average: float = 0.0
    """Of the machine, before the server was started: what else ran on it."""
    us_per_step: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    complete: bool = False


class Measuring:
    """The steps of one scenario, in the order of `run`."""

    def __init__(
        self,
        server: Loopback,
        key: SigningKey,
        wanted: Wanted,
        work: Work,
        found: Measured,
        say: Say,
        began: float,
        plan: Path | None,
    ) -> None:
        self._server, self._key, self._plan = server, key, plan
        self._wanted, self._work, self._found, self._say = wanted, work, found, say
        self._target = target_of(server)
        self._engines = client(key)
        self._began = began
        self._ours: dict[str, Ours] = {}
        self.saved: Callable[[], object] = lambda: None
        """Called whenever something new is known."""
        self.sessions: frozenset[int] = frozenset()
        """Of the processes that are part of what is measured."""

    async def run(self, traffic: Traffic) -> None:
        """Measure everything that was asked for. What is known when it is cancelled stands in `found`."""
        self._traffic = traffic
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._engines)
            await fix(self._engines, self._target, None)
            await asyncio.sleep(FILL_S)
            await self._calibrate()
            if self._work.tried:
                await self._sweep()
            found = self._found
            assert found.target_ms is not None
            for name in self._wanted.variants:
                objective = Objective(itl_s=found.target_ms / 1e3, itl_statistic=Statistic(found.statistic))
                ours = Ours(self._key, self._target, objective, VARIANTS[name], self._plan)
                self._ours[name] = await stack.enter_async_context(ours)
                await self._warm(ours)
            await self._rounds()
            await self._confirm()
        self._found.complete = True
        self.saved()

    async def _calibrate(self) -> None:
        """The default, and from it the objective."""
        found, full = self._found, self._work.scenario.full
        seen: list[list[Seen]] = []
        repeats: list[Figures] = []
        for _ in range(CALIBRATION_SLOTS):
            seen.append(await self._slot(full))
            self._keep(repeats, seen[-1], f"{'default, full' if full else 'default':28}")
        rule = self._work.scenario.objective
        p50, tail = _calibrated(repeats, rule)
        found.default_p50_ms, found.default_tail_ms = p50, tail
        found.target_ms = rule.ms(p50, tail)
        tape = self._traffic.read()
        if full:
            self._traffic.full_rate(median(requests_per_s(tape, windows) for windows in seen))
        else:
            # Only now can it be said which of these windows miss the objective.
            found.points[DEFAULT] = [figures(tape, w, found.target_ms, found.statistic) for w in seen]
        self._say(
            f"the objective: {found.statistic} at most {found.target_ms:g} ms, {rule.says(found.statistic)}; "
            f"the default gives {p50:.1f} and {tail:.1f}"
        )
        self.saved()

    async def _sweep(self) -> None:
        wanted, found = self._wanted, self._found
        for pair in coarse_grid(wanted.caps, wanted.pairs, self._work.coarse):
            await self._try(pair)
            found.swept += 1
        wanted_kinds = kinds(wanted)
        for number in range(self._work.most - found.swept):
            if number >= LEAST_REFINED and self._late():
                self._say("the sweep ends here: the rounds need the time that is left")
                return
            assert found.target_ms is not None
            first = number % len(wanted_kinds)
            turn = wanted_kinds[first:] + wanted_kinds[:first]
            asked = (refine(found.points, found.target_ms, caps_only) for caps_only in turn)
            pair_or_none = next((pair for pair in asked if pair is not None), None)
            if pair_or_none is None:
                self._say("the best settings have no neighbours left that were not tried")
                return
            await self._try(pair_or_none)
            found.swept += 1

    def _late(self) -> bool:
        """Whether another setting would leave too little time for the rounds."""
        spent = time.monotonic() - self._began
        rounds = rounds_s(self._wanted, self._work.scenario, self._work.slot_s)
        rest = len(self._wanted.variants) * WARM_S + rounds
        return spent + self._work.slot_s + rest > self._work.seconds

    async def _warm(self, ours: Ours) -> None:
        """Let an operator that knows nothing find its setting."""
        await fix(self._engines, self._target, None)
        self._traffic.switch(self._work.scenario.parts[0].mix or 0)
        ours.start()
        await asyncio.sleep(WARM_S)
        await ours.stop()
        self._say(f"{ours.variant.name:28} has run for {WARM_S:.0f} s, not judged{_cause(ours)}")

    async def _rounds(self) -> None:
        """Every policy once a round, until each has its repeats; every other round in reverse."""
        found, repeats = self._found, self._work.repeats
        for number in range(repeats):
            turns: list[Pair | str] = []
            defaults = found.points.get(DEFAULT, [])
            if "default" in self._wanted.policies and len(defaults) < default_repeats(repeats):
                turns.append(DEFAULT)
            turns += [pair for pair in self._best() if len(found.points[pair]) < repeats]
            turns += [name for name in self._ours if len(found.variants.get(name, [])) < repeats]
            for turn in turns if number % 2 == 0 else turns[::-1]:
                if isinstance(turn, Pair):
                    await self._try(turn)
                else:
                    await self._turn(self._ours[turn])

    async def _confirm(self) -> None:
        """Measure again what came to be the best late: a best has as many repeats as everybody else."""
        repeats = self._work.repeats
        for _ in range(MOST_CONFIRMED * repeats):
            fewer = [pair for pair in self._best() if len(self._found.points[pair]) < repeats]
            if not fewer:
                return
            await self._try(fewer[0])

    def _best(self) -> list[Pair]:
        """The best cap and the best pair as it looks now, each once, the default not among them."""
        found, best = self._found, []
        assert found.target_ms is not None
        if not self._work.tried:
            return []
        for caps_only in kinds(self._wanted):
            pair = pick(found.points, found.target_ms, caps_only)
            if pair is not None and pair != DEFAULT and pair not in best:
                best.append(pair)
        return best

    async def _try(self, pair: Pair) -> None:
        """One repeat of a fixed setting."""
        await fix(self._engines, self._target, None if pair == DEFAULT else pair)
        windows = await self._slot()
        kind = "default" if pair == DEFAULT else f"cap {pair.cap}"
        text = kind if is_cap(pair) else f"cap {pair.cap}, budget {pair.budget}"
        self._keep(self._found.points.setdefault(pair, []), windows, f"{text:28}")

    async def _turn(self, ours: Ours) -> None:
        """One repeat of a variant of ours."""
        ours.start()
        windows = await self._slot()
        await ours.stop()
        name = ours.variant.name
        self._keep(self._found.variants.setdefault(name, []), windows, f"{name:28}", _cause(ours))
        if ours.variant.us_per_step is not None:
            self._found.us_per_step = ours.variant.us_per_step((await read(self._server)).snapshot)

    async def _slot(self, instead: Sequence[Part] = ()) -> list[Seen]:
        """The windows of one repeat of whatever is in force, or of parts that are not the scenario's own."""
        windows = []
        for part in instead or self._work.scenario.parts:
            if part.mix is not None:
                self._traffic.switch(part.mix)
            if part.settle > 0:
                await self._drained()
            await asyncio.sleep(part.settle * self._wanted.settle_s)
            first = await read(self._server, self.sessions)
            changes = [part.change_s] if part.change_s > 0 else []
            for number, length in enumerate([*changes, *[self._wanted.window_s] * part.windows]):
                await asyncio.sleep(max(0.0, first.at + length - time.perf_counter()))
                last = await read(self._server, self.sessions)
                windows.append(replace(seen(first, last), part=part.name, change=number < len(changes)))
                first = last
        snapshot = first.snapshot
        self._found.versions = {"vllm": snapshot["vllm"], "tuner": snapshot["tuner"]}
        await asyncio.sleep(2 * FLUSH_S)
        return windows

    async def _drained(self) -> None:
        """Wait until no more runs than the cap says, which a lowered cap leaves to the answers' own end."""
        deadline = time.monotonic() + MOST_DRAIN_S
        while time.monotonic() < deadline:
            # First of all an operator that has just begun its turn has to set its cap.
            await asyncio.sleep(DRAIN_LOOK_S)
            engine = (await read(self._server)).engine
            if engine["running"] <= engine["max_num_active_seqs"]:
                return

    def _keep(self, kept: list[Figures], windows: list[Seen], name: str, more: str = "") -> None:
        tape = self._traffic.read()
        found = figures(tape, windows, self._found.target_ms, self._found.statistic)
        kept.append(found)
        self._found.streams, self._found.cut = tape.done, tape.cut
        self._say(
            f"{name} p50/p95/p99 {found.itl_p50_ms:.1f}/{found.itl_p95_ms:.1f}/{found.itl_p99_ms:.1f} ms, "
            f"{found.tokens_per_s:.0f} tokens/s, first token after {found.ttft_p50_s or 0:.1f} s"
            f"{_by_part(found)}{more}"
        )
        self.saved()


def _calibrated(repeats: Sequence[Figures], rule: Rule) -> tuple[float, float]:
    """The median and the tail that the objective is made from."""
    asked = [part for part in parts(repeats) if part.name == rule.part]
    if asked:
        return asked[0].itl_p50_ms, asked[0].itl_tail_ms
    p50 = summary(repeats)["itl_p50_ms"]
    assert p50 is not None
    return p50, median(figure.itl_tail_ms for figure in repeats)


def _by_part(found: Figures) -> str:
    """The parts' own figures, where there is more than one."""
    if len(found.parts) < 2:
        return ""
    told = (f"{p.name} {p.itl_tail_ms:.1f} ms, {p.tokens_per_s:.0f} tokens/s" for p in found.parts)
    return f" ({'; '.join(told)})"


def _cause(ours: Ours) -> str:
    """What the operator last said, and how often its changes were not taken."""
    if ours.decision is None:
        return ""
    setpoint = next(iter(ours.decision.setpoints.values()), None)
    cap = "" if setpoint is None else f", cap {setpoint.max_num_active_seqs}"
    if setpoint is not None and setpoint.max_num_scheduled_tokens is not None:
        cap += f", budget {setpoint.max_num_scheduled_tokens}"
    refused = f", {len(ours.refused)} changes refused: {ours.refused[-1]}" if ours.refused else ""
    return f"{cap}, {ours.decision.diagnosis.cause.value}{refused}"


def measure(
    server: Loopback,
    key: SigningKey,
    wanted: Wanted,
    work: Work,
    found: Measured,
    folder: Path,
    say: Say,
    saved: Callable[[], object],
    began: float,
) -> None:
    """Load the server, measure, end the load. Ctrl-C is passed on, with the load ended.

    `began` is when the scenario did, on the monotonic clock: its time is counted from there.
    """
    measuring = Measuring(server, key, wanted, work, found, say, began, folder / PLAN)
    measuring.saved = saved
    traffic = Traffic(server.url, MODEL, work.scenario.mixes, folder)
    measuring.sessions = frozenset({server.process.pid, traffic.session})
    try:
        asyncio.run(measuring.run(traffic))
    finally:
        traffic.stop()

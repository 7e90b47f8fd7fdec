"""The general plugin: what the tuner does inside the engine core.

`register` puts two methods on vLLM's `EngineCore`. The engine core handles a utility call between two steps
in its only thread, so such a method may read and set the scheduler's attributes without a lock, and takes
effect with the next step; it is also answered when the engine is idle or paused. The first call wraps three
methods of this scheduler object (not of its class): `schedule` for the lease and the budget,
`update_from_output` for the step meter, `add_request` to count arrivals. vLLM may load a general plugin
several times in one process and in processes without an engine; registering is idempotent and touches nothing
but the class, and vLLM's log for the last words of a process that ends.

Whatever fails in here must not fail the engine. An error in the tuner's own work is logged once, the
scheduler gets its own methods and its start values back, and from then on the tuner reports `TunerFailed` and
does nothing.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from llamaserver_tuner.digest import Digest
from llamaserver_tuner.lastwords import listen
from llamaserver_tuner.meter import StepMeter
from llamaserver_tuner.scheduler import SchedulerPort, shape_of
from llamaserver_tuner.setpoints import BUDGET, CAP, Refusal, Setpoints, parse_change

# Below "vllm" the lines get vLLM's handler and format.
logger = logging.getLogger("vllm.llamaserver_tuner")

READ = "llamaserver_tuner_read"
APPLY = "llamaserver_tuner_apply"
"""The names of the utility methods on EngineCore."""

BOOT_ID_VARIABLE = "LLAMASERVER_TUNER_BOOT_ID"
_STATE = "_llamaserver_tuner"


def boot_id() -> str:
    """Return the random name of this server's start, the same in all its processes.

    The first process that asks makes it, and the environment hands it to the processes it starts.
    """
    return os.environ.setdefault(BOOT_ID_VARIABLE, uuid4().hex)


def register() -> None:
    """Entry point of `vllm.general_plugins`. Never raises: vLLM would not start."""
    boot_id()
    listen()
    try:
        from vllm.v1.engine.core import EngineCore  # type: ignore[import-not-found]

        setattr(EngineCore, READ, _read)
        setattr(EngineCore, APPLY, _apply)
    except Exception:
        logger.exception("the tuner found no engine core to attach to; live changes are off")


def _read(core: Any) -> str:
    """Utility method: return this engine's state as JSON. (msgpack stops at 64 bits; the exact sums do
    not.)"""
    return _answer(core, lambda tuner: tuner.read())


def _apply(core: Any, body: str, not_after: float) -> str:
    """Utility method: apply a change (the body of a PUT) unless it is past `not_after` (Unix seconds)."""
    return _answer(core, lambda tuner: tuner.apply(body, not_after))


def _answer(core: Any, ask: Callable[[EngineTuner], dict[str, Any]]) -> str:
    index = int(getattr(core, "engine_index", 0))
    tuner = core.__dict__.get(_STATE)
    if isinstance(tuner, str):
        return json.dumps({"engine": index, "failed": tuner})
    if tuner is None:
        try:
            tuner = EngineTuner(SchedulerPort(core.scheduler), index)
            tuner.attach(core.scheduler)
        except Exception as error:
            # Said once and kept: a scheduler that is not understood will not be at the next reading either.
            logger.exception("the tuner cannot work in engine %d", index)
            tuner = f"{type(error).__name__}: {error}"
            setattr(core, _STATE, tuner)
            return json.dumps({"engine": index, "failed": tuner})
        setattr(core, _STATE, tuner)
    try:
        return json.dumps(ask(tuner))
    except Exception as error:
        tuner.switch_off(error)
        return json.dumps({"engine": index, "failed": tuner.failed})


class EngineTuner:
    """The tuner of one engine core. The engine core's thread is the only one in here."""

    def __init__(self, port: SchedulerPort, index: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is changed before `attach`. `clock` is in seconds, monotonic."""
        self.index = index
        self.port = port
        self.setpoints = Setpoints(port.limits)
        self.meter = StepMeter()
        self.queue = Digest()
        self.arrived = 0
        self.preemptions = 0
        self.active = True
        self.failed = ""
        self._clock = clock

    def attach(self, scheduler: Any) -> None:
        """Put the wrappers on the scheduler object. They stay; without `active` they only pass through."""
        # All three are looked up before the first is replaced: a scheduler is wrapped whole or not at all.
        add_request, schedule, update = (
            scheduler.add_request,
            scheduler.schedule,
            scheduler.update_from_output,
        )
        scheduler.add_request = self._counting(add_request)
        scheduler.schedule = self._leased(schedule)
        scheduler.update_from_output = self._metered(update)

    def switch_off(self, error: Exception) -> None:
        """Leave the engine as it was started and do nothing any more. Said in the log once."""
        self.active = False
        if self.failed:
            return
        self.failed = f"{type(error).__name__}: {error}"
        logger.error("engine %d: the tuner failed and switched itself off", self.index, exc_info=error)
        try:
            self.setpoints.reset()
            self._enforce()
        except Exception:
            logger.exception("engine %d: the tuner could not restore the start values", self.index)

    def read(self) -> dict[str, Any]:
        """Return this engine's part of the snapshot."""
        now = self._clock()
        self._end_lease(now)
        self.port.look_again()
        state = self._state(now)
        # After a failure the sums stand still; shown, they would be taken for an idle engine's.
        if not self.failed:
            state["steps"] = self.meter.to_json()
            state["queue"] = self.queue.to_json()
            state["lengths"] = self.port.lengths()
        return state

    def apply(self, body: str, not_after: float) -> dict[str, Any]:
        """Apply a change and return the state read back, or return it with `error`, the refusal."""
        now = self._clock()
        self._end_lease(now)
        self.port.look_again()
        refusal = self._refusal(body, not_after, now)
        if refusal is None:
            self._enforce()
        state = self._state(now)
        if refusal is not None:
            state["error"] = refusal.to_json()
        return state

    def _refusal(self, body: str, not_after: float, now: float) -> Refusal | None:
        if self.failed:
            return Refusal("NotWritable", self.failed)
        change = parse_change(body)
        if isinstance(change, Refusal):
            return change
        if time.time() > not_after:
            # A hung engine finds old messages in its socket when it wakes up.
            self.setpoints.rejected += 1
            return Refusal("Expired", "the change reached the engine after its time")
        before = self.setpoints.cap, self.setpoints.budget
        refusal = self.setpoints.put(change, now)
        after = self.setpoints.cap, self.setpoints.budget
        if after != before:
            logger.info(
                "engine %d: cap %d -> %d, token budget %d -> %d (generation %d, for %.0f s)",
                self.index,
                *(before[0], after[0], before[1], after[1]),
                *(change.generation, change.lease_s),
            )
        return refusal

    def _state(self, now: float) -> dict[str, Any]:
        limits, setpoints, port = self.port.limits, self.setpoints, self.port
        cap = port.cap
        return {
            "engine": self.index,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "start_num_active_seqs": limits.start_cap,
            "start_num_scheduled_tokens": limits.start_budget,
            CAP: cap,
            BUDGET: port.budget,
            "wanted": {CAP: setpoints.cap, BUDGET: setpoints.budget},
            "live": {name: "TunerFailed" if self.failed else reason for name, reason in limits.live.items()},
            "min_num_scheduled_tokens": limits.min_budget(cap),
            "pipeline_parallel_size": port.pipeline_parallel_size,
            "tokens_per_seq": limits.tokens_per_seq,
            "chunk_reserve": limits.chunk_reserve,
            "generation": setpoints.generation,
            "lease_expires_in_s": setpoints.remaining(now),
            "retunes": {
                "applied": setpoints.applied,
                "expired": setpoints.expired,
                "rejected": setpoints.rejected,
            },
            **port.gauges(),
            "arrived": self.arrived,
            "preemptions": self.preemptions,
            "failed": self.failed,
        }

    def _enforce(self) -> None:
        """Make the scheduler's attributes what is wanted."""
        live, setpoints, port = self.port.limits.live, self.setpoints, self.port
        if not live[CAP] and port.cap != setpoints.cap:
            port.cap = setpoints.cap
        if not live[BUDGET]:
            lowered = setpoints.budget < port.limits.start_budget
            budget = setpoints.budget_in_force(port.running, port.owed() if lowered else 0)
            if port.budget != budget:
                port.budget = budget

    def _end_lease(self, now: float) -> None:
        if self.setpoints.expire(now):
            self._enforce()
            logger.warning(
                "engine %d: the lease of generation %d ended; back to cap %d, token budget %d",
                self.index,
                self.setpoints.generation,
                self.setpoints.cap,
                self.setpoints.budget,
            )

    def before_step(self) -> None:
        """Note that a step begins, end a lease that is over, and make the budget what the step needs."""
        now = self._clock()
        self.meter.scheduled(int(now * 1e6))
        if self.setpoints.lease_until is not None:
            self._end_lease(now)
            self._enforce()

    def _after_step(self, output: Any) -> None:
        if output.preempted_req_ids:
            self.preemptions += len(output.preempted_req_ids)
        self.meter.output(int(self._clock() * 1e6), shape_of(output), idle=not self.port.running)

    def _after_schedule(self, output: Any) -> None:
        self.port.scheduled(output)
        if output.scheduled_new_reqs:
            self.queue.add_all(list(self.port.queue_times(output)))

    def _before_arrival(self, request: Any) -> None:
        if not self.port.has(request.request_id):
            self.arrived += 1

    def _leased(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def schedule_with_lease(*args: Any, **kwargs: Any) -> Any:
            self._guard(self.before_step)
            output = schedule(*args, **kwargs)
            self._guard(self._after_schedule, output)
            return output

        return schedule_with_lease

    def _metered(self, update_from_output: Callable[..., Any]) -> Callable[..., Any]:
        def update_from_output_with_meter(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            result = update_from_output(scheduler_output, *args, **kwargs)
            self._guard(self._after_step, scheduler_output)
            return result

        return update_from_output_with_meter

    def _counting(self, add_request: Callable[..., Any]) -> Callable[..., Any]:
        def add_request_counted(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._guard(self._before_arrival, request)
            return add_request(request, *args, **kwargs)

        return add_request_counted

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        """Do the tuner's own work; if it fails, leave the engine as it was started and do nothing any
        more."""
        if not self.active:
            return
        try:
            work(*args)
        except Exception as error:
            self.switch_off(error)

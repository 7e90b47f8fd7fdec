"""All that is known of vLLM's scheduler: which attributes exist, what they mean, and when they may be
written.

Written against vLLM 0.32 (`vllm/v1/core/sched/scheduler.py`, `output.py`). Everything is found by looking at
the object, never by a version number, and what is not found is a reason, not an error.

Two attributes are written, both plain integers that `Scheduler.schedule` reads afresh in every step:

- `max_num_active_reqs`, the admission cap. Lowered below the number of running sequences it just stops
  admission; they drain. Above `max_num_running_reqs` the scheduler's own assertion would end the engine, at 0
  it would spin.
- `max_num_scheduled_tokens`, the token budget of a step. It is safe where prefill is chunked at will; see
  `_budget_obstacle` and `_chunk_reserve` for where it is not, and `SchedulerPort.owed` for prompts that stand
  before decodes.

`max_num_running_reqs` is never written: it sizes buffers and graphs, and an assertion compares it with what
runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from llamaserver_tuner.meter import StepShape
from llamaserver_tuner.setpoints import BUDGET, CAP, Limits

_KNOWN_CLASSES = {
    "vllm.v1.core.sched.scheduler.Scheduler",
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler",
}
_UNTOLD = "NoAttribute"
"""The obstacle that this release's scheduler, or its requests, do not have an attribute."""
_UNPAUSED = "UNPAUSED"
"""`PauseState` of an engine that nobody told to stand still."""
WAITING_LOOKED_AT = 256
"""How many waiting requests are looked at, for their lengths or for what they wait for: a queue may hold a
hundred thousand."""
_UNBLOCKED = ("WAITING", "PREEMPTED")
"""Names of the `RequestStatus` of those that wait for nothing that they would have to be told of."""
_QUEUED = 1
"""`EngineCoreEventType.QUEUED`: the event a request gets when it enters the scheduler."""


def shape_of(output: Any) -> StepShape | None:
    """Describe a step from its `SchedulerOutput`; None when it holds no tokens.

    A request prefills when it is new to the step or gets more than one token plus its speculative ones; all
    others decode. (The last chunk of a prompt may have one token: it costs what a decode costs, and counts as
    one.) KV tokens are the contexts of the scheduled sequences at the end of the step, which is what
    attention reads; a prefix that two sequences share is read twice and counts twice. All of it is C-speed
    work on the lists that vLLM made anyway.
    """
    total: int = output.total_num_scheduled_tokens
    if not total:
        return None
    scheduled, cached, new = (
        output.num_scheduled_tokens,
        output.scheduled_cached_reqs,
        output.scheduled_new_reqs,
    )
    kv_tokens = total + sum(cached.num_computed_tokens)
    speculative = output.scheduled_spec_decode_tokens
    decoding, prefill_tokens = len(scheduled), 0
    if new or total != decoding + sum(map(len, speculative.values())):
        kv_tokens += sum([request.num_computed_tokens for request in new])
        new_tokens = [scheduled[request.req_id] for request in new]
        if speculative:
            old = [(scheduled[r], 1 + len(speculative.get(r, ()))) for r in cached.req_ids]
            chunks = [tokens for tokens, decode_tokens in old if tokens > decode_tokens]
            decoding = len(old) - len(chunks)
            prefill_tokens = sum(new_tokens) + sum(chunks)
        else:
            decoding = list(scheduled.values()).count(1) - new_tokens.count(1)
            prefill_tokens = total - decoding
    clean = not (
        output.preempted_req_ids
        or output.scheduled_encoder_inputs
        or getattr(output, "has_sync_kv_loads", False)
    )
    return StepShape(decoding, kv_tokens, prefill_tokens, clean)


class SchedulerPort:
    """One scheduler, seen through the few attributes the tuner needs."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._live = _live(scheduler)
        self.limits = _limits(scheduler, self._live)
        self._chunk_limit = _long_prefill_threshold(scheduler) or self.limits.start_budget
        """The most tokens of one prompt in a step."""
        self.pipeline_parallel_size = _pipeline_parallel_size(scheduler)
        self._prompts_run = True
        """Whether a prompt may be among those that run; see `scheduled`."""

    @property
    def cap(self) -> int:
        """The admission cap in force, read from the scheduler."""
        return _cap(self._scheduler)

    @cap.setter
    def cap(self, value: int) -> None:
        if not 1 <= value <= self.limits.max_num_seqs or self.limits.live[CAP]:
            raise ValueError(f"{CAP}={value} would break the engine")
        self._scheduler.max_num_active_reqs = value

    @property
    def budget(self) -> int:
        """The token budget in force, read from the scheduler."""
        return _budget(self._scheduler)

    @budget.setter
    def budget(self, value: int) -> None:
        if not 1 <= value <= self.limits.start_budget or self.limits.live[BUDGET]:
            raise ValueError(f"{BUDGET}={value} would break the engine")
        self._scheduler.max_num_scheduled_tokens = value

    @property
    def running(self) -> int:
        """How many sequences run. Under asynchronous scheduling this includes some that are about to end."""
        return len(self._scheduler.running)

    def look_again(self) -> None:
        """Look at what nobody could see before a request ran, see `_requests_obstacle`."""
        if not self.limits.live[BUDGET] and (reason := _requests_obstacle(self._scheduler)):
            self._keep_budget(reason)

    def _keep_budget(self, reason: str) -> None:
        """From now on the budget is not live, and what it was at the start."""
        self._scheduler.max_num_scheduled_tokens = self.limits.start_budget
        self._live[BUDGET] = reason

    def scheduled(self, output: Any) -> None:
        """Note whether this step, scheduled just now, can leave a prompt among those that run: somebody new
        or back in it, or with more tokens than a decode takes."""
        if self._prompts_run:
            return
        tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        self._prompts_run = bool(
            output.scheduled_new_reqs
            or getattr(output.scheduled_cached_reqs, "resumed_req_ids", True)
            or output.total_num_scheduled_tokens != len(tokens) + sum(map(len, drafts.values()))
        )

    def owed(self) -> int:
        """Return the tokens that the running list takes up to its last decode, where a prompt stands before
        one; 0 where all prompts come last. Where the requests do not tell, the budget stops being live.

        The scheduler serves the list from its front and gives a prompt all that is left, so at first only the
        last of it can be a prompt: nobody is admitted behind one that took the rest. One that was held back
        (by `long_prefill_token_threshold`, a full encoder cache, the edge of a block) leaves some, and who is
        admitted with that soon decodes behind it. What all of them took fitted into the budget of that step.
        It need not fit into a smaller one, and a decode that gets nothing waits until the prompts are done.
        Nobody is looked at while only decodes run.
        """
        if not self._prompts_run:
            return 0
        try:
            return self._owed(self._scheduler.running)
        except AttributeError:
            self._keep_budget(_UNTOLD)
            return self.limits.start_budget

    def _owed(self, running: Sequence[Any]) -> int:
        prefilling = [request.is_prefill_chunk for request in running]
        self._prompts_run = True in prefilling
        if not self._prompts_run or False not in prefilling[prefilling.index(True) :]:
            return 0
        until = len(prefilling) - prefilling[::-1].index(False)
        return sum(
            min(self._chunk_limit, request.num_tokens - request.num_computed_tokens)
            if is_prompt
            else self.limits.tokens_per_seq
            for request, is_prompt in zip(running[:until], prefilling, strict=False)
        )

    def has(self, request_id: str) -> bool:
        """Whether the request is known: a second call of add_request for it is a further turn, not an
        arrival."""
        return request_id in self._scheduler.requests

    def gauges(self) -> dict[str, Any]:
        """Return what the scheduler holds now.

        `waiting` is every request that waits, like vLLM's `num_requests_waiting`; `waiting_deferred` is the
        part of it that waits for something else than room, see `_deferred`. `waiting_for_streaming_input` is
        the part of both that keeps its place under the admission cap: sessions that paused for more input.
        `paused` says that somebody told the engine to schedule nothing, or nothing new.
        """
        scheduler = self._scheduler
        running, waiting = scheduler.get_request_counts()
        return {
            "running": running,
            "waiting": waiting,
            "waiting_deferred": _deferred(scheduler),
            "waiting_for_streaming_input": int(getattr(scheduler, "num_waiting_for_streaming_input", 0)),
            "paused": getattr(getattr(scheduler, "pause_state", None), "name", _UNPAUSED) != _UNPAUSED,
            "max_model_len": getattr(scheduler, "max_model_len", None),
            "kv": self._kv(),
        }

    def lengths(self) -> dict[str, Any] | None:
        """Return how long the requests are that run now and that wait at the front of the queue; None where
        this release's requests do not tell.

        `bounded` are those whose `max_tokens` says something. vLLM gives everybody one: who asked for none
        may generate up to the model's length, and so does who asked for more than that; they are `unbounded`.
        """
        scheduler = self._scheduler
        try:
            # Those that hold blocks, and preempted ones, come first and are looked at first.
            queues = (getattr(scheduler, "kv_holding_waiting", ()), scheduler.waiting)
            front = islice(chain.from_iterable(map(_in_order, queues)), WAITING_LOOKED_AT)
            longest = scheduler.max_model_len
            return {"running": _lengths(scheduler.running, longest), "waiting": _lengths(front, longest)}
        except (AttributeError, TypeError):
            return None

    def queue_times(self, output: Any) -> Iterator[float]:
        """Yield how long (seconds) each request waited that this step admitted for the first time."""
        for new in output.scheduled_new_reqs:
            request = self._scheduler.requests.get(new.req_id)
            # A preempted request comes back as a new one; its wait was counted when it was first admitted.
            if request is None or request.num_preemptions:
                continue
            events = request.events
            if events and events[0].type == _QUEUED:
                yield events[-1].timestamp - events[0].timestamp

    def _kv(self) -> dict[str, int | None] | None:
        pool = getattr(getattr(self._scheduler, "kv_cache_manager", None), "block_pool", None)
        if pool is None:
            return None
        # One block is vLLM's null block: it is never given to a sequence.
        blocks = pool.num_gpu_blocks - 1
        return {
            "block_size": self._scheduler.block_size,
            "num_blocks": blocks,
            "used_blocks": blocks - pool.get_num_free_blocks(),
            # Blocks times block size is not it where layers of several kinds share the pool.
            "capacity_tokens": getattr(self._scheduler.cache_config, "kv_cache_size_tokens", None),
        }


def _deferred(scheduler: Any) -> int:
    """Return how many requests wait for something else than room: an adapter slot, a KV transfer, a grammar,
    more input.

    vLLM looks again at those that it has put aside only when it looks for somebody to admit, so while the cap
    is reached it goes on counting those whose grammar or KV cache has come, or whose adapter runs by now.
    They wait for room like others. Of many, some are looked at and stand for the rest. All count as vLLM
    counts them where the scheduler or its requests are not what they are here.
    """
    deferred = getattr(scheduler, "deferred_waiting", ())
    if not deferred:
        return 0
    try:
        looked_at = list(islice(deferred, WAITING_LOOKED_AT))
        come = getattr(scheduler, "finished_recving_kv_req_ids", ())
        taken = _taken_adapters(scheduler)
        want_room = sum(_wants_room(request, come, taken) for request in looked_at)
    except Exception:  # of any kind: `grammar` runs code of vLLM's, which may raise what the compiler did
        return len(deferred)
    return len(deferred) - round(len(deferred) * want_room / len(looked_at))


def _wants_room(request: Any, come: Container[str], taken: Container[int] | None) -> bool:
    """Whether nothing but room is in the way of this request that was put aside."""
    status = request.status.name
    if status == "WAITING_FOR_REMOTE_KVS":
        return request.request_id in come
    if status == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
        return request.structured_output_request.grammar is not None
    adapter = getattr(request, "lora_request", None)
    if adapter is None or status not in _UNBLOCKED:
        return False
    return taken is None or adapter.lora_int_id in taken


def _taken_adapters(scheduler: Any) -> Container[int] | None:
    """The adapters that fill all slots; None while one is free. Nobody is looked at once all are found."""
    config = getattr(scheduler, "lora_config", None)
    if not config:
        return None
    active: set[int] = set()
    for request in scheduler.running:
        if request.lora_request:
            active.add(request.lora_request.lora_int_id)
            if len(active) >= config.max_loras:
                return active
    return None


def _in_order(queue: Any) -> Iterable[Any]:
    """A waiting queue as it can be looked at without copying and sorting all of it: a priority queue's heap
    has its first members near the front."""
    heap: Iterable[Any] = getattr(queue, "_heap", queue)
    return heap


def _lengths(requests: Iterable[Any], longest: int) -> dict[str, dict[str, int]]:
    """Return sums of tokens over bounded and unbounded requests; `longest` is the model's length."""
    sums = {True: [0, 0, 0, 0], False: [0, 0, 0, 0]}
    for request in requests:
        prompt, most = request.num_prompt_tokens, request.max_tokens
        of = sums[prompt + most < longest]
        of[0] += 1
        of[1] += prompt
        of[2] += request.num_output_tokens
        of[3] += min(most, longest)  # some routes take any number from a client
    names = ("requests", "prompt_tokens", "generated_tokens", "max_tokens")
    return {
        kind: dict(zip(names, sums[bounded], strict=True))
        for kind, bounded in (("bounded", True), ("unbounded", False))
    }


def _cap(scheduler: Any) -> int:
    return int(getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs))


def _budget(scheduler: Any) -> int:
    fallback = scheduler.scheduler_config.max_num_batched_tokens
    return int(getattr(scheduler, "max_num_scheduled_tokens", fallback))


def _limits(scheduler: Any, live: Mapping[str, str]) -> Limits:
    return Limits(
        max_num_seqs=scheduler.max_num_running_reqs,
        max_num_batched_tokens=scheduler.scheduler_config.max_num_batched_tokens,
        start_cap=_cap(scheduler),
        start_budget=_budget(scheduler),
        tokens_per_seq=1 + _speculative_tokens(scheduler),
        chunk_reserve=_chunk_reserve(scheduler),
        live=live,
    )


def _live(scheduler: Any) -> dict[str, str]:
    return {
        CAP: _class_obstacle(scheduler)
        or _pipeline_obstacle(scheduler)
        or _role_obstacle(scheduler)
        or _attribute_obstacle(scheduler, "max_num_active_reqs"),
        BUDGET: _class_obstacle(scheduler) or _budget_obstacle(scheduler),
    }


def _class_obstacle(scheduler: Any) -> str:
    cls = type(scheduler)
    # Another class may ignore the attribute or hold other things true of it.
    return "" if f"{cls.__module__}.{cls.__qualname__}" in _KNOWN_CLASSES else "CustomScheduler"


def _pipeline_parallel_size(scheduler: Any) -> int:
    config = getattr(scheduler, "parallel_config", None)
    return int(getattr(config, "pipeline_parallel_size", 1) or 1)


def _pipeline_obstacle(scheduler: Any) -> str:
    # The cap counts the sequences of all micro-batches, the meter sees one of them at a time: a law that
    # compares the two would move the cap by a figure that is too small by the pipeline's depth.
    return "PipelineParallel" if _pipeline_parallel_size(scheduler) > 1 else ""


def _role_obstacle(scheduler: Any) -> str:
    # Offloading, and whatever else both gives and takes KV cache, only changes where a prompt's comes from.
    # An engine that prefills for others ends a sequence with its first token: it has no decode batch that a
    # cap could bound.
    transfer = getattr(getattr(scheduler, "vllm_config", None), "kv_transfer_config", None)
    return "PrefillRole" if getattr(transfer, "kv_role", None) == "kv_producer" else ""


def _attribute_obstacle(scheduler: Any, name: str) -> str:
    return "" if type(getattr(scheduler, name, None)) is int else _UNTOLD


def _budget_obstacle(scheduler: Any) -> str:
    """Say why a smaller budget could block the queue for good, or "" if it cannot."""
    config = scheduler.scheduler_config
    if getattr(scheduler, "is_encoder_decoder", False):
        return "EncoderDecoder"
    if not getattr(config, "enable_chunked_prefill", False):
        # A prompt longer than the budget would never be admitted, and it holds up all behind it.
        return "ChunkedPrefillOff"
    if getattr(config, "long_prefill_token_threshold_adaptive", False):
        # What one long prompt may take before the decodes behind it changes with their number.
        return "AdaptivePrefillThreshold"
    if getattr(config, "is_multimodal_model", False) and getattr(config, "disable_chunked_mm_input", False):
        # As above, for an image or a sound that may not be split.
        return "MultimodalItemsNotChunked"
    return _attribute_obstacle(scheduler, "max_num_scheduled_tokens") or _requests_obstacle(scheduler)


def _requests_obstacle(scheduler: Any) -> str:
    # A prompt before a decode could not be seen, see `SchedulerPort.owed`. Only a request can tell: vLLM's
    # have these from when they are made, and their class says nothing of it.
    told = ("is_prefill_chunk", "num_tokens", "num_computed_tokens")
    missing = any(not hasattr(request, name) for request in scheduler.running[:1] for name in told)
    return _UNTOLD if missing else ""


def _speculative_tokens(scheduler: Any) -> int:
    return int(getattr(scheduler, "num_spec_tokens", 0) or 0)


def _long_prefill_threshold(scheduler: Any) -> int:
    return int(getattr(scheduler.scheduler_config, "long_prefill_token_threshold", 0) or 0)


def _chunk_reserve(scheduler: Any) -> int:
    """Return the tokens that prefill needs beyond the decodes of a step to get on at all."""
    # A chunk must end on a block's edge, or it is not scheduled.
    aligned = getattr(scheduler, "need_mamba_block_aligned_split", False)
    block = int(scheduler.cache_config.block_size) if aligned else 0
    # A chunk may not end closer than this to the prompt's end (multi-module MTP drafts).
    return block + int(getattr(scheduler, "num_prefill_lookahead", 0) or 0)

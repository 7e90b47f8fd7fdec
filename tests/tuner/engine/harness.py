"""A real vLLM scheduler with a made-up model runner: every scheduled sequence gets its next token.

Runs in vLLM's own environment, with nothing but what vLLM brings. The model is a folder with a config alone:
nothing is loaded, because the scheduler never sees weights.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from llamaserver_tuner.engine import EngineTuner
from llamaserver_tuner.scheduler import SchedulerPort
from llamaserver_tuner.setpoints import BUDGET, CAP

logging.getLogger("vllm").setLevel(logging.CRITICAL)

init_none_hash(sha256)

BLOCK = 16
FAR = time.time() + 3600
"""A deadline that no check lives to see."""
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


def make_config(
    seqs: int = 16,
    tokens: int = 512,
    asynchronous: bool = False,
    caching: bool = False,
    drafts: int = 0,
    **scheduler: Any,
) -> VllmConfig:
    """A configuration for one small Llama on the CPU; with prefix caching, or with so many n-gram drafts."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_LLAMA))
        model = ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=2048
        )
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=caching),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_model_len=2048,
            is_encoder_decoder=False,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            async_scheduling=asynchronous,
            **scheduler,
        ),
    )
    if drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=drafts,
            prompt_lookup_max=4,
            prompt_lookup_min=2,
            target_model_config=model,
            target_parallel_config=config.parallel_config,
        )
    return config


def make_scheduler(
    config: VllmConfig | None = None, blocks: int = 2000, cls: type[Scheduler] | None = None
) -> Scheduler:
    """The scheduler that vLLM itself would make for `config`."""
    config = config or make_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
    kv = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    cls = cls or config.scheduler_config.get_scheduler_cls()
    return cls(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def make_request(
    name: str,
    prompt: int | list[int],
    output: int,
    sampling: dict[str, Any] | None = None,
    cached: bool = False,
    **other: Any,
) -> Request:
    """A request with that prompt (or with one of so many tokens) that ends after `output` more; `cached` lets
    the prefix cache know it."""
    params = SamplingParams(max_tokens=output, ignore_eos=True, **(sampling or {}))
    params.update_from_generation_config({}, eos_token_id=2)
    if cached:
        other["block_hasher"] = get_request_block_hasher(BLOCK, sha256)
    return Request(
        request_id=name,
        prompt_token_ids=[7] * prompt if isinstance(prompt, int) else prompt,
        sampling_params=params,
        pooling_params=None,
        **other,
    )


def model_output(
    scheduler: Scheduler, scheduled: Any, accepted: Callable[[int], int] | None = None
) -> ModelRunnerOutput:
    """What a model runner would say: one token for every sequence whose prompt is done with this step, and as
    many of its drafts as are `accepted`."""
    names = list(scheduled.num_scheduled_tokens)
    tokens = []
    for name in names:
        request = scheduler.requests.get(name)
        drafts = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
        more = accepted(drafts) if accepted and drafts else 0
        tokens.append([] if request is None or request.is_prefill_chunk else [5] * (1 + more))
    return ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
    )


class Loop:
    """vLLM's engine loop around a scheduler: synchronous, or with a batch queue like asynchronous
    scheduling."""

    def __init__(self, scheduler: Scheduler, accepted: Callable[[int], int] | None = None) -> None:
        """`accepted` says how many of so many drafts hold; as many are made anew where drafts are known
        before a step is scheduled."""
        self.scheduler = scheduler
        self.accepted = accepted
        self.depth = 2 if isinstance(scheduler, AsyncScheduler) else 1
        self.finished: set[str] = set()
        self.tokens: dict[str, int] = {}
        self.outputs: list[Any] = []
        self.events: list[Any] = []
        self._queue: deque[tuple[Any, ModelRunnerOutput]] = deque()

    def step(self) -> Any:
        """One round of the loop; return the SchedulerOutput whose output was processed, or None."""
        return self.submit(self.scheduler.schedule())

    def submit(self, scheduled: Any) -> Any:
        """Run a step that was scheduled; return the SchedulerOutput whose output was processed, or None."""
        output = model_output(self.scheduler, scheduled, self.accepted)
        self._queue.append((scheduled, self.answered(output)))
        return self._process() if len(self._queue) >= self.depth else None

    def answered(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """What the workers say of a step beside its tokens: nothing."""
        return output

    def drain(self, limit: int = 10_000) -> int:
        """Run until nothing is left; return how many steps that took."""
        for steps in range(limit):
            if not self.scheduler.has_requests():
                return steps
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def _process(self) -> Any:
        scheduled, output = self._queue.popleft()
        results = self.scheduler.update_from_output(scheduled, output)
        for outputs in results.values():
            self.outputs.append(outputs)
            for one in outputs.outputs:
                self.events += [event.type for event in one.events or ()]
                self.tokens[one.request_id] = self.tokens.get(one.request_id, 0) + len(one.new_token_ids)
                if one.finish_reason is not None:
                    self.finished.add(one.request_id)
        if self.accepted and self.depth == 1:
            self._draft(list(scheduled.num_scheduled_tokens))
        return scheduled

    def _draft(self, names: list[str]) -> None:
        """What the engine core does after a step of the synchronous loop: the drafts for the next one."""
        assert self.accepted is not None
        made = [[9] * self.accepted(self.scheduler.num_spec_tokens) for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, made))


class Clock:
    """A clock that a test moves. Starts at the real time, because vLLM's events carry real time stamps."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


def tuned(scheduler: Any, clock: Clock | None = None) -> EngineTuner:
    tuner = EngineTuner(SchedulerPort(scheduler), 0, clock or Clock())
    tuner.attach(scheduler)
    return tuner


def put(tuner: EngineTuner, cap: int | None, budget: int | None = None, lease: float = 60) -> dict[str, Any]:
    body = {CAP: cap, BUDGET: budget, "generation": tuner.setpoints.generation + 1, "lease_seconds": lease}
    return tuner.apply(json.dumps(body), FAR)


def both(**config: Any) -> list[Scheduler]:
    """The synchronous and the asynchronous scheduler."""
    return [make_scheduler(make_config(asynchronous=kind, **config)) for kind in (False, True)]

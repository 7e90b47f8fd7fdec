"""What an engine says of itself: the tuner's snapshot, and `/metrics` under vLLM's names."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import islice

from llamaserver.simulate.engine import Engine
from llamaserver.simulate.sequence import Sequence

BLOCK = 16
WAITING_TOLD = 256
"""Of so many waiting requests in front the tuner tells the lengths."""


def snapshot(engine: Engine) -> bytes:
    """What the tuner answers."""
    return json.dumps(document(engine)).encode()


def document(engine: Engine) -> dict[str, object]:
    """The snapshot as data; its keys are described in docs/tuner.md."""
    return {
        "schema": 1,
        "tuner": "0.1.0",
        "vllm": "0.32.0",
        "pod_uid": "uid",
        "boot_id": f"boot-{engine.boots}",
        "monotonic_s": engine.now,
        "api_servers": 1,
        "writable": True,
        "reason": "",
        "message": "",
        "engines": [_core(engine)],
        "requests": {"0": _requests(engine)},
    }


def _core(engine: Engine) -> dict[str, object]:
    p = engine.profile
    leased = not math.isinf(engine.lease_until)
    return {
        "engine": 0,
        "max_num_seqs": p.max_num_seqs,
        "max_num_batched_tokens": p.budget,
        "start_num_active_seqs": p.max_num_seqs,
        "max_num_active_seqs": engine.cap,
        "max_num_scheduled_tokens": engine.budget,
        "start_num_scheduled_tokens": p.budget,
        "wanted": {"max_num_active_seqs": engine.cap, "max_num_scheduled_tokens": engine.budget},
        "tokens_per_seq": 1,
        "max_model_len": p.longest,
        "chunk_reserve": engine.chunk_reserve,
        "live": {"max_num_active_seqs": "", "max_num_scheduled_tokens": engine.live_budget},
        "min_num_scheduled_tokens": engine.cap + engine.chunk_reserve,
        "generation": engine.generation,
        "lease_expires_in_s": max(0.0, engine.lease_until - engine.now) if leased else None,
        "retunes": {"applied": engine.generation, "expired": 0, "rejected": 0},
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "waiting_deferred": 0,
        "paused": False,
        "kv": {
            "block_size": BLOCK,
            "num_blocks": p.kv_tokens // BLOCK,
            "used_blocks": min(p.kv_tokens // BLOCK, math.ceil(engine.used / BLOCK)),
        },
        "preemptions": engine.preemptions,
        "steps": {kind: moments.json() for kind, moments in engine.moments.items()},
        "lengths": {
            "running": _lengths(engine, engine.running),
            "waiting": _lengths(engine, islice(engine.waiting, WAITING_TOLD)),
        },
    }


def _requests(engine: Engine) -> dict[str, object]:
    return {
        "itl": engine.itl.json(),
        "tpot": engine.tpot.json(),
        "ttft": engine.ttft.json(),
        "queue": engine.queue.json(),
        "prompt_tokens": engine.prompt_tokens,
        "cached_prompt_tokens": engine.cached_prompt_tokens,
        "generation_tokens": engine.generation_tokens,
        "arrived": engine.arrived,
        "finished": {"stop": 0, "length": engine.finished, "abort": 0, "error": 0},
        "prompt_tokens_finished": round(engine.prompts.total),
        "generation_tokens_finished": round(engine.outputs.total),
        "bounded_finished": engine.bounded_finished,
        "max_tokens_bounded_finished": engine.bounded_most,
        "generation_tokens_bounded_finished": engine.bounded_out,
        "itl_events": engine.itl.count,
    }


def _lengths(engine: Engine, sequences: Iterable[Sequence]) -> dict[str, dict[str, int]]:
    """Sums of lengths, apart for requests that may generate less than the model's length and the others."""
    parts: dict[bool, list[Sequence]] = {True: [], False: []}
    for s in sequences:
        parts[engine.bounded(s)].append(s)
    return {
        kind: {
            "requests": len(some),
            "prompt_tokens": sum(s.prompt for s in some),
            "generated_tokens": sum(map(engine.generated, some)),
            "max_tokens": sum(s.most for s in some),
        }
        for kind, some in (("bounded", parts[True]), ("unbounded", parts[False]))
    }


def metrics(engine: Engine) -> str:
    """What `/metrics` answers."""
    p = engine.profile
    steps = sum(moments.steps for moments in engine.moments.values())
    own, blocks = 'engine="0",model_name="m"', p.kv_tokens // BLOCK
    lines = [
        f"vllm:num_requests_running{{{own}}} {float(len(engine.running))}",
        f"vllm:num_requests_waiting{{{own}}} {float(len(engine.waiting))}",
        f"vllm:kv_cache_usage_perc{{{own}}} {min(1.0, engine.used / p.kv_tokens)}",
        f"vllm:num_preemptions_total{{{own}}} {float(engine.preemptions)}",
        f"vllm:prefix_cache_queries_total{{{own}}} {float(engine.prefix_queries)}",
        f"vllm:prefix_cache_hits_total{{{own}}} {float(engine.prefix_hits)}",
        f"vllm:prompt_tokens_total{{{own}}} {float(engine.prompt_tokens)}",
        f"vllm:prompt_tokens_cached_total{{{own}}} {float(engine.cached_prompt_tokens)}",
        f"vllm:generation_tokens_total{{{own}}} {float(engine.generation_tokens)}",
        f'vllm:request_success_total{{{own},finished_reason="length"}} {float(engine.finished)}',
        f'vllm:cache_config_info{{engine="0",block_size="{BLOCK}",num_gpu_blocks="{blocks}"}} 1.0',
        *engine.itl.text("inter_token_latency_seconds"),
        *engine.tpot.text("request_time_per_output_token_seconds"),
        *engine.ttft.text("time_to_first_token_seconds"),
        *engine.queue.text("request_queue_time_seconds"),
        f'vllm:iteration_tokens_total_bucket{{{own},le="+Inf"}} {float(steps)}',
        f"vllm:iteration_tokens_total_sum{{{own}}} {float(engine.generation_tokens)}",
        f"vllm:iteration_tokens_total_count{{{own}}} {float(steps)}",
        *engine.prompts.text("request_prompt_tokens"),
        *engine.outputs.text("request_generation_tokens"),
    ]
    return "\n".join(lines) + "\n"

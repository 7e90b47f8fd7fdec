"""The overload: its requests, the flags of `vllm bench serve` that send them, and its result. Pure."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from demo.bench import ENDED
from demo.recording import WINDOW_S

CHUNK = 256
"""Tokens that one hash id of the trace stands for: a whole prompt, so that the trace stays small."""
MOST_STREAMS = 2000
"""Length of the trace; a run gets as far as its time allows."""


@dataclass(frozen=True)
class Shape:
    """A closed loop: `concurrency` clients, each sends its next request when the last one ended."""

    concurrency: int
    prompt: tuple[int, int]
    """Fewest and most prompt tokens, uniform."""
    output: tuple[int, int]
    """Fewest and most generated tokens, uniform."""
    seed: int = 0

    def describe(self) -> str:
        """In one line, for people."""
        return (
            f"{self.concurrency} streams at once, prompts of {self.prompt[0]} to {self.prompt[1]} tokens, "
            f"answers of {self.output[0]} to {self.output[1]} tokens"
        )


@dataclass(frozen=True)
class Request:
    """One line of the trace, in tokens."""

    prompt: int
    output: int


@dataclass(frozen=True)
class ClientFigures:
    """What vLLM's own benchmark client measured."""

    streams: int
    cut: int
    causes: tuple[str, ...]
    itl_ms: dict[str, float]
    ttft_ms: dict[str, float]
    tokens_per_s: float
    duration_s: float
    windows: int
    windows_violated: int


def requests(shape: Shape, count: int = MOST_STREAMS) -> list[Request]:
    """The requests of a load: always the same for a shape, and a longer load begins like a shorter one."""
    rng = random.Random(shape.seed)
    return [Request(rng.randint(*shape.prompt), rng.randint(*shape.output)) for _ in range(count)]


def trace(work: Sequence[Request]) -> str:
    """The requests in the form of `vllm bench serve --dataset-name timed_trace`.

    All are due at once, so that --max-concurrency alone paces them; no two share a prompt, so that no prefix
    is ever found in the cache.
    """
    ids, lines = itertools.count(), []
    for request in work:
        hashes = [next(ids) for _ in range(-(-request.prompt // CHUNK))]
        line = {
            "timestamp": 0,
            "input_length": request.prompt,
            "output_length": request.output,
            "hash_ids": hashes,
        }
        lines.append(json.dumps(line, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def bench_flags(url: str, model: str, tokenizer: str, concurrency: int, trace_file: str) -> list[str]:
    """The flags of `vllm bench serve`."""
    return [
        *("--backend", "vllm", "--base-url", url, "--model", model, "--tokenizer", tokenizer),
        *("--dataset-name", "timed_trace", "--dataset-path", trace_file, "--self-timed"),
        *("--timed-trace-chunk-hash-size", str(CHUNK)),
        *("--num-prompts", str(MOST_STREAMS), "--max-concurrency", str(concurrency)),
        *("--temperature", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-detailed"),
    ]


def unpack(said: str) -> dict[str, Any]:
    """The benchmark's result as bench.py wrote it. Raises ValueError when it failed or is not all there."""
    try:
        result = json.loads(gzip.decompress(base64.b64decode(said)))
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"the benchmark's result cannot be read: {error}") from error
    if not isinstance(result, dict) or "error" in result:
        raise ValueError(f"the benchmark failed: {str(result)[-1500:]}")
    return result


def finished(result: dict[str, Any], work: Sequence[Request]) -> tuple[dict[str, Any], list[Request]]:
    """The result without the streams that the end of the run's time took, and the requests that are left.

    Raises ValueError when nothing is.
    """
    kept = [i for i, error in enumerate(result["errors"]) if error != ENDED]
    if not kept:
        raise ValueError("not a single stream of the benchmark came to its end")
    lists = ("start_times", "ttfts", "itls", "output_lens", "errors")
    return {**result, **{name: [result[name][i] for i in kept] for name in lists}}, [work[i] for i in kept]


def _token_times(result: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """(Seconds since the load's start, gap before) of every token but the first of each stream."""
    origin = min(result["start_times"])
    for start, ttft, gaps in zip(result["start_times"], result["ttfts"], result["itls"], strict=True):
        at = start - origin + ttft
        for gap in gaps:
            at += gap
            yield at, gap


def percentile(ordered: Sequence[float], q: float) -> float:
    """Nearest-rank quantile of ordered values."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def percentiles_ms(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of durations in seconds, as milliseconds; empty for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {f"p{round(100 * q)}": round(1e3 * percentile(ordered, q), 2) for q in (0.5, 0.95, 0.99)}


def cut_streams(result: dict[str, Any], work: Sequence[Request]) -> tuple[str, ...]:
    """Why each stream counts as cut that does: it failed, or brought fewer tokens than asked for.

    Every request ignores the end-of-sequence token, so each must bring its full length.
    """
    causes = []
    for asked, got, error in zip(work, result["output_lens"], result["errors"], strict=True):
        if error:
            causes.append(str(error).strip().splitlines()[-1][:200])
        elif got < asked.output:
            causes.append(f"{got} of {asked.output} tokens")
    return tuple(causes)


def client_figures(
    result: dict[str, Any], work: Sequence[Request], settle_s: float, quantile: float, target_s: float
) -> ClientFigures:
    """The client's side of a run, over the time in which the load was whole: after settling, up to the last
    request; a first token counts when it came in that time.

    A window is violated when the `quantile` of the gaps between tokens in it is above the target.
    """
    last = max(result["start_times"])
    result, work = finished(result, work)
    origin = min(result["start_times"])
    end = last - origin
    settled = [(at, gap) for at, gap in _token_times(result) if settle_s <= at <= end]
    count = max(0, int((end - settle_s) / WINDOW_S))
    found: list[list[float]] = [[] for _ in range(count)]
    for at, gap in settled:
        index = int((at - settle_s) / WINDOW_S)
        if index < count:
            found[index].append(gap)
    judged = [sorted(gaps) for gaps in found if gaps]
    sent = zip(result["start_times"], result["ttfts"], strict=True)
    ttfts = [ttft for start, ttft in sent if start + ttft - origin >= settle_s]
    causes = cut_streams(result, work)
    return ClientFigures(
        streams=len(work),
        cut=len(causes),
        causes=causes[:5],
        itl_ms=percentiles_ms([gap for _, gap in settled]),
        ttft_ms=percentiles_ms(ttfts),
        tokens_per_s=round(result["output_throughput"], 1),
        duration_s=round(result["duration"], 1),
        windows=len(judged),
        windows_violated=sum(percentile(gaps, quantile) > target_s for gaps in judged),
    )

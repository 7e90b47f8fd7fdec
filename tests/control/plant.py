"""A small plant: one continuous-batching engine, step by step, in virtual time.

It speaks both languages of a pod: the tuner's snapshot (JSON bytes) and exposition text. Steps follow tau = a
+ b B + g K + d P + c [P > 0], with noise per step and, if wanted, noise that a whole second shares. Prompts
are prefilled in chunks within the token budget; admission keeps to the cap and to the KV cache; when the
cache is full the newest sequence is preempted and recomputed. Everything is drawn from one seeded generator.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

ITL_EDGES = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    80.0,
    math.inf,
)
QUEUE_EDGES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 60.0, 240.0, 960.0, math.inf)
LO, GROWTH = 1e-4, 1.04
LOG_GROWTH = math.log(GROWTH)

Lengths = Callable[[random.Random, float], tuple[int, int]]
"""(generator, time) -> prompt tokens, output tokens."""


@dataclass(frozen=True)
class Profile:
    """A machine and a model: seconds per step, sequence, resident token, prefill token, prefill-carrying
    step.
    """

    a: float
    b: float
    g: float
    d: float
    c: float
    kv_tokens: int
    max_num_seqs: int
    budget: int = 2048


CPU_24M = Profile(a=6.4e-3, b=0.45e-3, g=0.6e-6, d=0.17e-3, c=2e-3, kv_tokens=60_000, max_num_seqs=32)
"""A 24 M Llama on two cores: 7.3 ms a step at one sequence, 16 at 16, 25 at 32."""
H100_8B = Profile(6.5e-3, 12e-6, 56e-9, 25e-6, 1e-3, kv_tokens=467_000, max_num_seqs=256, budget=8192)


def slower(p: Profile, factor: float) -> Profile:
    """The same machine with every step `factor` times as long."""
    return replace(p, a=factor * p.a, b=factor * p.b, g=factor * p.g, d=factor * p.d, c=factor * p.c)


def words(rng: random.Random, _: float) -> tuple[int, int]:
    """Prompts of 32 to 256 tokens, outputs of 60 to 300: the mix the CPU profile was measured with."""
    return rng.choice((32, 64, 128, 256)), rng.randint(60, 300)


def chat(rng: random.Random, _: float) -> tuple[int, int]:
    """About 1,000 tokens in and 200 out."""
    return int(rng.lognormvariate(6.7, 0.6)), 1 + int(rng.expovariate(1 / 200))


@dataclass
class Sequence:
    prompt: int
    output: int
    arrived: float
    to_prefill: int
    generated: int = 0
    prefilled: int = 0
    ends_at: int = 0
    """The decode count at which it is done."""
    began_at: int = 0
    last_token: float = 0.0
    admitted: bool = False
    alive: int = 0
    stream: bool = False


@dataclass
class Tally:
    """A cumulative digest and a cumulative histogram of the same observations."""

    edges: tuple[float, ...]
    count: int = 0
    total: float = 0.0
    digest: dict[int, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=list)

    def add(self, value: float, times: int = 1) -> None:
        if not self.buckets:
            self.buckets = [0] * len(self.edges)
        index = max(-1, math.floor(math.log(max(value, 1e-9) / LO) / LOG_GROWTH))
        self.digest[index] = self.digest.get(index, 0) + times
        self.buckets[bisect_left(self.edges, value)] += times
        self.count += times
        self.total += value * times

    def json(self) -> dict[str, object]:
        counts = {str(i): n for i, n in sorted(self.digest.items())}
        return {"lo": LO, "growth": GROWTH, "count": self.count, "sum": self.total, "counts": counts}

    def text(self, name: str) -> list[str]:
        lines, running = [], 0
        for edge, n in zip(self.edges, self.buckets or [0] * len(self.edges), strict=True):
            running += n
            le = "+Inf" if math.isinf(edge) else repr(edge)
            lines.append(f'vllm:{name}_bucket{{engine="0",le="{le}",model_name="m"}} {float(running)}')
        lines.append(f'vllm:{name}_sum{{engine="0",model_name="m"}} {self.total}')
        lines.append(f'vllm:{name}_count{{engine="0",model_name="m"}} {float(self.count)}')
        return lines


MOMENTS = ("n", "B", "K", "P", "y", "BB", "BK", "BP", "By", "KK", "KP", "Ky", "PP", "Py", "yy")


class Engine:
    """One pod with one engine core. `run_until` moves it; `snapshot`, `metrics` and `put` are its doors."""

    def __init__(
        self,
        profile: Profile,
        lengths: Lengths = words,
        *,
        seed: int = 1,
        start: float = 0.0,
        step_noise: float = 0.04,
        slow_noise: float = 0.0,
        stalls: float = 0.0,
    ) -> None:
        self.profile, self.lengths = profile, lengths
        self.rng = random.Random(seed)
        self.step_noise, self.slow_noise = step_noise, slow_noise
        self.stalls = stalls
        """Share of steps held up by something else on the machine, on average; it comes and goes."""
        self.stalled, self.stalled_until = 0.0, start
        self.now = start
        self.streams = 0
        self.rate = 0.0
        self.next_arrival = math.inf
        self.level, self.level_until = 1.0, start
        self.tokens_made = 0
        self.preempted_ever = 0
        self.boots = 0
        self.log: list[tuple[float, float, int]] = []
        """(time, step seconds, decoding sequences) of every step."""
        self.done: list[float] = []
        self.reset()

    def reset(self) -> None:
        """A container restart: new boot, counters at zero, all requests gone."""
        self.boots += 1
        self.cap = self.profile.max_num_seqs
        self.budget = self.profile.budget
        self.lease_until = math.inf
        self.generation = 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.decoding = 0
        self.decodes = 0
        self.kv = 0
        self.heap: list[tuple[int, int, int, Sequence]] = []
        self.serial = 0
        self.moments = {"decode": dict.fromkeys(MOMENTS, 0), "mixed": dict.fromkeys(MOMENTS, 0)}
        self.itl, self.ttft = Tally(ITL_EDGES), Tally(ITL_EDGES)
        self.queue, self.tpot = Tally(QUEUE_EDGES), Tally(ITL_EDGES)
        self.preemptions = self.arrived = self.finished = 0
        self.prompt_tokens = self.generation_tokens = self.finished_prompt = self.finished_out = 0
        self.live_streams = 0
        self.clean = False

    # --- load -----------------------------------------------------------------------------------------------
    def load(self, *, streams: int = 0, rate: float = 0.0) -> None:
        """`streams` closed-loop clients without a pause, and Poisson arrivals of `rate` per second."""
        self.streams = streams
        if rate != self.rate:
            self.rate = rate
            self.next_arrival = self.now + self.rng.expovariate(rate) if rate > 0 else math.inf

    def _arrive(self, stream: bool) -> None:
        prompt, output = self.lengths(self.rng, self.now)
        self.arrived += 1
        self.waiting.append(Sequence(prompt, max(2, output), self.now, prompt, stream=stream))
        self.live_streams += stream

    def _arrivals(self) -> None:
        while self.live_streams < self.streams:
            self._arrive(True)
        while self.next_arrival <= self.now:
            self._arrive(False)
            self.next_arrival += self.rng.expovariate(self.rate)

    # --- steps ----------------------------------------------------------------------------------------------
    def run_until(self, until: float) -> None:
        while self.now < until:
            self._arrivals()
            if self.now >= self.lease_until:
                self.cap, self.budget, self.lease_until = (
                    self.profile.max_num_seqs,
                    self.profile.budget,
                    math.inf,
                )
            if not self.running and not self.waiting:
                self.clean = False
                self.now = min(until, self.next_arrival)
                continue
            self._step()

    def _free_for(self, decoding: int) -> None:
        """Preempts the newest sequences until every decoding one has room for its next token."""
        while self.kv + decoding > self.profile.kv_tokens and len(self.running) > 1:
            victim = self.running.pop()
            victim.alive += 1
            if victim.prefilled >= victim.to_prefill:
                victim.generated += self.decodes - victim.began_at
                self.decoding -= 1
                decoding -= 1
            self.kv -= victim.prefilled if victim.prefilled < victim.to_prefill else self._resident(victim)
            victim.to_prefill, victim.prefilled = victim.prompt + victim.generated, 0
            self.waiting.appendleft(victim)
            self.preemptions += 1
            self.preempted_ever += 1
            self.clean = False

    def _resident(self, s: Sequence) -> int:
        return s.prompt + s.generated

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], int]:
        self._free_for(self.decoding)
        budget = self.budget - self.decoding
        chunks: list[tuple[Sequence, int]] = []
        for s in self.running:
            if s.prefilled < s.to_prefill and budget > 0:
                take = min(budget, s.to_prefill - s.prefilled)
                chunks.append((s, take))
                budget -= take
        reserved = sum(s.to_prefill - s.prefilled for s in self.running if s.prefilled < s.to_prefill)
        while self.waiting and budget > 0 and len(self.running) < self.cap:
            s = self.waiting[0]
            if self.kv + self.decoding + reserved + s.to_prefill > self.profile.kv_tokens:
                break
            self.waiting.popleft()
            self.running.append(s)
            if not s.admitted:
                s.admitted = True
                self.queue.add(self.now - s.arrived)
            take = min(budget, s.to_prefill)
            chunks.append((s, take))
            budget -= take
            reserved += s.to_prefill
        return chunks, sum(take for _, take in chunks)

    def _noise(self) -> float:
        if self.slow_noise and self.now >= self.level_until:
            self.level, self.level_until = max(0.5, self.rng.gauss(1.0, self.slow_noise)), self.now + 1.0
        return self.level * max(0.5, self.rng.gauss(1.0, self.step_noise))

    def _stall(self) -> float:
        """Seconds that a step waits for the processor: 20 ms on average when it does."""
        if not self.stalls:
            return 0.0
        if self.now >= self.stalled_until:
            self.stalled, self.stalled_until = self.stalls * self.rng.expovariate(1.0), self.now + 4.0
        return self.rng.expovariate(1 / 0.02) if self.rng.random() < self.stalled else 0.0

    def _step(self) -> None:
        chunks, prefill = self._schedule()
        p, batch, resident = self.profile, self.decoding, self.kv
        y = (p.a + p.b * batch + p.g * resident + p.d * prefill + (p.c if prefill else 0.0)) * self._noise()
        y += self._stall()
        self.now += y
        self.log.append((self.now, y, batch))
        if batch and self.clean:
            self._sum("mixed" if prefill else "decode", batch, resident, prefill, round(y * 1e6))
        self.clean = True
        self.decodes += 1
        if batch:
            self.itl.add(y, batch)
            self.generation_tokens += batch
            self.tokens_made += batch
            self.kv += batch
        while self.heap and self.heap[0][0] <= self.decodes:
            _, _, alive, s = heapq.heappop(self.heap)
            if s.alive == alive:
                self._finish(s)
        for s, take in chunks:
            s.prefilled += take
            self.kv += take
            if s.prefilled >= s.to_prefill:
                self._first_token(s)

    def _sum(self, kind: str, b: int, k: int, p: int, y: int) -> None:
        m = self.moments[kind]
        m["n"] += 1
        values = {"B": b, "K": k, "P": p, "y": y}
        for key, v in values.items():
            m[key] += v
        for key in MOMENTS[5:]:
            m[key] += values[key[0]] * values[key[1]]

    def _first_token(self, s: Sequence) -> None:
        if s.generated == 0:
            self.ttft.add(self.now - s.arrived)
            self.prompt_tokens += s.prompt
        else:
            self.itl.add(self.now - s.last_token if s.last_token else self.now - s.arrived)
        s.generated += 1
        s.last_token = self.now
        self.kv += 1
        self.generation_tokens += 1
        self.tokens_made += 1
        s.began_at = self.decodes
        self.decoding += 1
        self.serial += 1
        heapq.heappush(self.heap, (self.decodes + s.output - s.generated, self.serial, s.alive, s))

    def _finish(self, s: Sequence) -> None:
        s.alive += 1
        s.generated += self.decodes - s.began_at
        self.running.remove(s)
        self.decoding -= 1
        self.kv -= self._resident(s)
        self.finished += 1
        self.finished_prompt += s.prompt
        self.finished_out += s.generated
        self.tpot.add((self.now - s.arrived) / s.generated)
        self.live_streams -= s.stream
        self.done.append(self.now)

    # --- doors ----------------------------------------------------------------------------------------------
    def put(self, cap: int | None, lease_s: float = 120.0) -> None:
        assert cap is None or 1 <= cap <= self.profile.max_num_seqs
        self.cap = self.profile.max_num_seqs if cap is None else cap
        self.lease_until = self.now + lease_s
        self.generation += 1

    def document(self) -> dict[str, object]:
        p = self.profile
        engine = {
            "engine": 0,
            "max_num_seqs": p.max_num_seqs,
            "max_num_batched_tokens": p.budget,
            "start_num_active_seqs": p.max_num_seqs,
            "max_num_active_seqs": self.cap,
            "max_num_scheduled_tokens": self.budget,
            "live": {"max_num_active_seqs": "", "max_num_scheduled_tokens": ""},
            "min_num_scheduled_tokens": self.cap,
            "generation": self.generation,
            "lease_expires_in_s": None
            if math.isinf(self.lease_until)
            else max(0.0, self.lease_until - self.now),
            "retunes": {"applied": self.generation, "expired": 0, "rejected": 0},
            "running": len(self.running),
            "waiting": len(self.waiting),
            "waiting_deferred": 0,
            "kv": {
                "block_size": 16,
                "num_blocks": p.kv_tokens // 16,
                "used_blocks": min(p.kv_tokens // 16, math.ceil(self.kv / 16)),
            },
            "preemptions": self.preemptions,
            "steps": self.moments,
        }
        requests = {
            "itl": self.itl.json(),
            "tpot": self.tpot.json(),
            "ttft": self.ttft.json(),
            "queue": self.queue.json(),
            "prompt_tokens": self.prompt_tokens,
            "cached_prompt_tokens": 0,
            "generation_tokens": self.generation_tokens,
            "arrived": self.arrived,
            "finished": {"stop": 0, "length": self.finished, "abort": 0, "error": 0},
            "prompt_tokens_finished": self.finished_prompt,
            "generation_tokens_finished": self.finished_out,
            "itl_events": self.itl.count,
        }
        return {
            "schema": 1,
            "tuner": "0.1.0",
            "vllm": "0.32.0",
            "pod_uid": "uid",
            "boot_id": f"boot-{self.boots}",
            "monotonic_s": self.now,
            "api_servers": 1,
            "writable": True,
            "reason": "",
            "message": "",
            "engines": [engine],
            "requests": {"0": requests},
        }

    def snapshot(self) -> bytes:
        return json.dumps(self.document()).encode()

    def metrics(self) -> str:
        p = self.profile
        steps = self.moments["decode"]["n"] + self.moments["mixed"]["n"]
        own = 'engine="0",model_name="m"'
        lines = [
            f"vllm:num_requests_running{{{own}}} {float(len(self.running))}",
            f"vllm:num_requests_waiting{{{own}}} {float(len(self.waiting))}",
            f"vllm:kv_cache_usage_perc{{{own}}} {min(1.0, self.kv / p.kv_tokens)}",
            f"vllm:num_preemptions_total{{{own}}} {float(self.preemptions)}",
            f"vllm:prompt_tokens_total{{{own}}} {float(self.prompt_tokens)}",
            f"vllm:generation_tokens_total{{{own}}} {float(self.generation_tokens)}",
            f'vllm:request_success_total{{{own},finished_reason="length"}} {float(self.finished)}',
            f'vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="{p.kv_tokens // 16}"}} 1.0',
            *self.itl.text("inter_token_latency_seconds"),
            *self.ttft.text("time_to_first_token_seconds"),
            *self.queue.text("request_queue_time_seconds"),
            f'vllm:iteration_tokens_total_bucket{{{own},le="+Inf"}} {float(steps)}',
            f"vllm:iteration_tokens_total_sum{{{own}}} {float(self.generation_tokens)}",
            f"vllm:iteration_tokens_total_count{{{own}}} {float(steps)}",
        ]
        return "\n".join(lines) + "\n"

"""/metrics with the names, labels and buckets of vLLM 0.32, as of an engine without a prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from llamaserver.simulate.live import LiveEngine
from llamaserver.simulate.speech import BLOCK
from llamaserver.simulate.tally import length_edges
from llamaserver_engine_sim.statistics import FinishedRequest, IterationStats

Metric = TypeVar("Metric", Gauge, Counter)

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""By level of sleep, the first for none."""

ITL = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class VllmMetrics:
    """The metrics of one engine in a registry of its own."""

    def __init__(self, model: str, plant: LiveEngine) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._own = {"model_name": model, "engine": "0"}
        self._families: dict[str, Gauge | Counter] = {}
        self._gauges(plant)
        self._sleep = {
            state: self._gauge("engine_sleep_state", "Engine sleep state.", sleep_state=state)
            for state in SLEEP_STATES
        }
        self.asleep(0)
        self._counters()
        self._histograms(length_edges(plant.profile.longest))
        self._cache_config(plant)

    def asleep(self, level: int) -> None:
        """Show the level of sleep; 0 is awake."""
        for at, state in enumerate(SLEEP_STATES):
            self._sleep[state].set(float(at == level))

    def step(self, batch: int, prefill: int, preempted: int) -> None:
        """Count one step of the engine core."""
        self._step_tokens.observe(batch + prefill)
        self._preemptions.inc(preempted)

    def record(self, stats: IterationStats) -> None:
        """Count what one step gave to the clients."""
        self._generation.inc(stats.num_generation_tokens)
        self._prompt.inc(stats.prompt_token_stats.total)
        self._by_source["local_compute"].inc(stats.prompt_token_stats.total)
        for seconds in stats.inter_token_latencies_iter:
            self._itl.observe(seconds)
        for seconds in stats.time_to_first_tokens_iter:
            self._ttft.observe(seconds)
        for request in stats.finished_requests:
            self._finished(request)

    def _finished(self, request: FinishedRequest) -> None:
        self._success[request.finish_reason].inc()
        for name, value in (
            ("e2e_request_latency_seconds", request.e2e_latency),
            ("request_queue_time_seconds", request.queued_time),
            ("request_prefill_time_seconds", request.prefill_time),
            ("request_inference_time_seconds", request.inference_time),
            ("request_decode_time_seconds", request.decode_time),
            ("request_time_per_output_token_seconds", request.mean_time_per_output_token),
            ("request_prompt_tokens", request.num_prompt_tokens),
            ("request_generation_tokens", request.num_generation_tokens),
            ("request_max_num_generation_tokens", request.num_generation_tokens),
            ("request_params_max_tokens", request.max_tokens_param),
            ("request_params_n", 1),
            ("request_prefill_kv_computed_tokens", request.num_prompt_tokens),
        ):
            self._per_request[name].observe(value)

    # --- registration -------------------------------------------------------------------------------
    def _gauges(self, plant: LiveEngine) -> None:
        held = plant.profile.kv_tokens
        waiting = "Number of requests waiting to be processed."
        by_reason = "Number of waiting requests by reason."
        running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        running.set_function(lambda: len(plant.running))
        self._gauge("num_requests_waiting", waiting).set_function(lambda: len(plant.waiting))
        capacity = self._gauge("num_requests_waiting_by_reason", by_reason, reason="capacity")
        capacity.set_function(lambda: len(plant.waiting))
        self._gauge("num_requests_waiting_by_reason", by_reason, reason="deferred")
        usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        usage.set_function(lambda: min(1.0, plant.kv / held))

    def _counters(self) -> None:
        for kind in ("queries", "hits"):
            for where in ("", "external_"):
                self._counter(f"{where}prefix_cache_{kind}", f"{where}prefix cache {kind}, in tokens.")
            self._counter(f"mm_cache_{kind}", f"Multi-modal cache {kind}, in items.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemptions.")
        self._prompt = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._by_source = {
            source: self._counter("prompt_tokens_by_source", "Prompt tokens by source.", source=source)
            for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
        }
        self._counter("prompt_tokens_cached", "Number of cached prompt tokens.")
        for tier in ("device", "host", "p2p", "disk", "external_unspecified"):
            self._counter("prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", source=tier)
        self._generation = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._success = {
            reason: self._counter("request_success", "Requests by how they ended.", finished_reason=reason)
            for reason in FINISH_REASONS
        }
        rejected = Counter(
            "vllm:admission_rejections",
            "Requests rejected by a queue limit.",
            ["model_name", "reason"],
            registry=self.registry,
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejected.labels(self._own["model_name"], reason)

    def _histograms(self, lengths: Sequence[float]) -> None:
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens per engine step.", STEP_TOKENS)
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token.", TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", "Inter-token latency.", ITL)
        phases = ("queue", "inference", "prefill", "decode")
        kinds: dict[str, Sequence[float]] = {
            "request_time_per_output_token_seconds": ITL,
            "e2e_request_latency_seconds": LATENCY,
            **{f"request_{phase}_time_seconds": LATENCY for phase in phases},
            "request_params_n": (1, 2, 5, 10, 20),
            "request_prompt_tokens": lengths,
            "request_generation_tokens": lengths,
            "request_max_num_generation_tokens": lengths,
            "request_params_max_tokens": lengths,
            "request_prefill_kv_computed_tokens": lengths,
        }
        self._per_request = {
            name: self._histogram(name, f"Of each request: {name}.", buckets)
            for name, buckets in kinds.items()
        }

    def _cache_config(self, plant: LiveEngine) -> None:
        profile = plant.profile
        told = {
            "block_size": BLOCK,
            "cache_dtype": "auto",
            "enable_prefix_caching": False,
            "engine": "0",
            "gpu_memory_utilization": 0.92,
            "kv_cache_max_concurrency": round(profile.kv_tokens / profile.longest, 2),
            "kv_cache_size_tokens": profile.kv_tokens,
            "num_gpu_blocks": profile.kv_tokens // BLOCK,
        }
        documentation = "Information of the LLMEngine CacheConfig"
        info = Gauge("vllm:cache_config_info", documentation, list(told), registry=self.registry)
        info.labels(*map(str, told.values())).set(1)

    def _gauge(self, name: str, documentation: str, **labels: str) -> Gauge:
        return self._child(Gauge, name, documentation, labels)

    def _counter(self, name: str, documentation: str, **labels: str) -> Counter:
        return self._child(Counter, name, documentation, labels)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        names = list(self._own)
        made = Histogram(f"vllm:{name}", documentation, names, buckets=buckets, registry=self.registry)
        return made.labels(**self._own)

    def _child(self, kind: type[Metric], name: str, documentation: str, labels: dict[str, str]) -> Metric:
        """One series of a family, which is made with its first one."""
        family = self._families.get(name)
        if family is None:
            names = [*self._own, *labels]
            family = self._families[name] = kind(f"vllm:{name}", documentation, names, registry=self.registry)
        child = family.labels(**self._own, **labels)
        assert isinstance(child, kind)
        return child

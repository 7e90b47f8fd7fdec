"""The one table of metric names, by what they mean and by vLLM release.

Names are matched exactly: `num_requests_waiting` is a prefix of `num_requests_waiting_by_reason`, and a match
by prefix doubles the queue. Where a figure was renamed, several releases exported the old and the new name at
once with the same observations, so the first name that has samples is taken and the others are left alone;
they are never added.

Sources: vllm/v1/metrics/loggers.py of release 0.32, and public captures of 0.4 to 0.10 for the older names.
"""

from __future__ import annotations

PREFIXES = ("vllm:", "ray_vllm:")
"""Ray Serve puts its own prefix before vLLM's. The first prefix with samples is used."""

RUNNING = ("num_requests_running",)
WAITING = ("num_requests_waiting",)
WAITING_BY_REASON = ("num_requests_waiting_by_reason",)
KV_FETCH = ("num_requests_kv_fetch_by_stage",)  # with a KV connector only
KV_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # the old name went with 0.11; both are 0..1
PREEMPTIONS = ("num_preemptions_total",)
PROMPT_TOKENS = ("prompt_tokens_total",)
# `gpu_prefix_cache_hits_total` counted blocks in some releases and tokens in others, so it is not used.
CACHED_PROMPT_TOKENS = ("prompt_tokens_cached_total", "prefix_cache_hits_total")
GENERATION_TOKENS = ("generation_tokens_total",)
FINISHED = ("request_success_total",)
FINISHED_REASON, ABORT = "finished_reason", "abort"
ITL = (
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
)  # renamed in 0.11; the old one gone in 0.13
TPOT = ("request_time_per_output_token_seconds",)
UNPACED = ("request_generation_tokens_bucket",)
"""Its bucket of one token has the finished requests that TPOT counts as 0 s: they had nothing to wait for."""
TTFT = ("time_to_first_token_seconds",)
QUEUE = ("request_queue_time_seconds",)
STEPS = ("iteration_tokens_total",)  # a histogram whose name ends like a counter's; its _count counts steps
CACHE_CONFIG = ("cache_config_info",)

# Of finished requests; only a history is asked for them, a scrape is not.
PROMPT_LENGTHS = ("request_prompt_tokens",)
OUTPUT_LENGTHS = ("request_generation_tokens",)
REJECTED = ("admission_rejections_total",)

# From the tuner, without vLLM's prefix.
CAP = "llamaserver_max_num_active_seqs"
CEILING = "llamaserver_max_num_seqs"
BUDGET = "llamaserver_max_num_scheduled_tokens"

_PLAIN = (
    RUNNING,
    WAITING,
    WAITING_BY_REASON,
    KV_FETCH,
    KV_USAGE,
    PREEMPTIONS,
    PROMPT_TOKENS,
    CACHED_PROMPT_TOKENS,
    GENERATION_TOKENS,
    FINISHED,
    UNPACED,
    CACHE_CONFIG,
)
_HISTOGRAMS = (ITL, TPOT, TTFT, QUEUE, STEPS)


def exact_names() -> frozenset[str]:
    """Every sample name that is ever read, with prefixes and histogram suffixes."""
    plain = {prefix + name for names in _PLAIN for name in names for prefix in PREFIXES}
    histograms = {
        prefix + name + suffix
        for names in _HISTOGRAMS
        for name in names
        for prefix in PREFIXES
        for suffix in ("_bucket", "_sum", "_count")
    }
    return frozenset(plain | histograms | {CAP, CEILING, BUDGET})


def pattern() -> str:
    """A regular expression that matches what `exact_names` has and nothing else, as Prometheus reads it."""
    plain = "|".join(name for names in _PLAIN for name in names)
    histograms = "|".join(name for names in _HISTOGRAMS for name in names)
    prefixes = "|".join(PREFIXES)
    return f"({prefixes})({plain}|({histograms})_(bucket|sum|count))|{CAP}|{CEILING}|{BUDGET}"

"""The report's form: what build/demo/report.json holds, and what makes a run a success."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SHARE_VIOLATED_WHEN_OFF = 0.8
"""At least this share of windows must miss the objective without tuning, or the demo shows nothing."""
SHARE_VIOLATED_WHEN_HELD = 0.05
"""At most this share of windows may miss it with tuning for the objective to count as held. Of fewer than 20
windows, as the demo's are, one may: at that share every seventh run of three has one.
"""
SHARE_OF_PREEMPTIONS_LEFT = 0.25
"""They are some dozens in a run, so that one more or less is chance."""
SHARE_OF_THROUGHPUT_KEPT = 0.95
"""At least this share of the throughput must be left where memory, not latency, is the illness."""

Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Every part of the report: unknown fields are refused, so that a reader can rely on the schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Percentiles(Part):
    """Milliseconds."""

    p50: Amount
    p95: Amount
    p99: Amount


class RetunePercentiles(Part):
    """Milliseconds from the operator's request to the engine's read-back, over all changes of cap or budget
    that were applied during the demo; renewals of leases are not among them.
    """

    p50: Amount
    p99: Amount
    count: Count


class Machine(Part):
    cpu: str
    cores: int
    memory_gib: Amount
    kernel: str
    dtype: str = Field(description="The type that the model ran in.")


class CalibrationPart(Part):
    """The statistic measured by the engine itself, milliseconds."""

    one_stream_ms: Amount
    ceiling_ms: Amount
    ceiling: Count
    target_ms: Count


class LoadPart(Part):
    description: str
    concurrency: Count
    settle_s: Amount
    window_s: Amount


class Client(Part):
    """What `vllm bench serve` measured, on the far side of HTTP, once the load had settled."""

    itl_ms: Percentiles
    ttft_ms: Percentiles = Field(description="Where the first token came after settling.")
    tokens_per_s: Amount = Field(description="Of streams that came to their end, over the whole run.")
    duration_s: Amount
    violated_window_share: Share
    cut_causes: tuple[str, ...] = ()


class Place(Part):
    """Where a run lies on the clock of the recorder, whose readings are in recording.jsonl; seconds."""

    start: Amount
    end: Amount


class Run(Part):
    """One run of the overload, from the engine's own exact counts over the judged windows."""

    place: Place
    violated_window_share: Share
    windows: Count
    windows_unknown: Count = Field(description="Windows without data; they count as violated.")
    itl_ms: Percentiles
    goodput_tokens_per_s: Amount = Field(
        description="Tokens of the windows that met the objective, over all time."
    )
    tokens_per_s: Amount
    queue_ms: Percentiles | None = Field(
        description="Time requests waited in the engine: the price of a lower cap."
    )
    cap_lowest: Count
    cap_highest: Count
    cap_last: Count
    budget_lowest: Count = Field(description="Prefill budget in force, tokens per step.")
    budget_highest: Count
    budget_last: Count
    streams_total: Count
    streams_cut: Count
    client: Client


class KvRun(Part):
    """Figures of the whole load, from its first request on; throughput without the filling of the cache."""

    place: Place
    seconds: Amount
    preemptions: Count
    preemptions_per_minute: Amount
    tokens_per_s: Amount
    finished: Count = Field(description="Requests that came to their end within the run.")
    cap_last: Count


class Kv(Part):
    """A KV cache too small for what is admitted; no latency objective (the batch objective).

    The diagnosis is what the operator said with tuning off: it names an illness whether or not it may treat
    it.
    """

    off: KvRun
    auto: KvRun
    streams_total: Count
    streams_cut: Count
    diagnosis: str
    message: str
    advice: str


class Overhead(Part):
    """Cost of the tuner inside vLLM, from its own micro-benchmark, for one batch size."""

    command: str
    batch: Count
    engine_core_us_per_step: Amount
    api_server_us_per_step: Amount
    engine_core_share_of_step: Share = Field(description="Of the median step in the run with both knobs.")


class Check(Part):
    """One promise, and whether this run kept it."""

    name: str
    passed: bool
    detail: str


class Report(Part):
    """Everything the demo measured."""

    started: str
    duration_s: Amount
    cluster: str
    machine: Machine
    versions: dict[str, str]
    statistic: str
    target_ms: Count
    calibration: CalibrationPart
    load: LoadPart
    off: Run = Field(description="Tuning off: the engine as it was started.")
    cap_alone: Run = Field(description="Tuning on, prefillBudget Fixed: the sequence cap is the only knob.")
    auto: Run = Field(description="Tuning on: the sequence cap and the prefill budget.")
    seconds_to_hold: Amount | None = Field(description="Of the run with both knobs.")
    cap_changes: Count
    budget_changes: Count
    pods_rolled: bool
    retune_ms: RetunePercentiles | None
    kv: Kv | None
    tuner_overhead: Overhead | None
    checks: tuple[Check, ...]
    resource: str = Field(description="`kubectl get lls` in the midst of the run with both knobs.")
    resource_wide: str = Field(description="The same with `-o wide`.")
    decisions: tuple[str, ...]
    events: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

"""The values in force where a spec says nothing. Descriptions, rules and `effective` all take them from
here.
"""

from __future__ import annotations

from typing import Final

from llamaserver.api.duration import Duration
from llamaserver.api.enums import (
    LatencyScope,
    MetricsSource,
    Precedence,
    PrefillBudget,
    ScalingMode,
    Statistic,
    TuningMode,
)

MAX_NUM_SEQS: Final = 256
MAX_NUM_BATCHED_TOKENS: Final = 2048
TENSOR_PARALLEL_SIZE: Final = 1
STATISTIC: Final = Statistic.P95
LATENCY_SCOPE: Final = LatencyScope.TOKEN
PRECEDENCE: Final = Precedence.INTER_TOKEN_LATENCY
TUNING_MODE: Final = TuningMode.AUTO
PREFILL_BUDGET: Final = PrefillBudget.AUTO
MIN_NUM_SEQS: Final = 1
METRICS_SOURCE: Final = MetricsSource.ENGINE
SCALING_MODE: Final = ScalingMode.AUTO
MIN_REPLICAS: Final = 1
FIXED_REPLICAS: Final = 1
MAX_SURGE: Final = 0
STARTUP_TIMEOUT: Final = Duration("30m")
DRAIN_TIMEOUT: Final = Duration("2m")

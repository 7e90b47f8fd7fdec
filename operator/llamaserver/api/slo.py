"""spec.slo: what is promised to the people who read the stream, and to those who wait for it."""

from __future__ import annotations

from pydantic import Field

from llamaserver.api.base import Group
from llamaserver.api.duration import Duration
from llamaserver.api.enums import LatencyScope, Precedence, Statistic

_STATISTIC = (
    "Which figure must stay under the target: mean, p50, p90, p95 or p99. Default: p95. A change takes "
    "effect at the next tick, without a restart."
)


class InterTokenLatencySLO(Group):
    """The objective for the time between two outputs of one stream, while it is being generated."""

    target: Duration = Field(
        description="Upper bound of the inter-token latency, e.g. 50ms: a number and a unit (ms, s, m, h). "
        "Reading speed is some 100ms a token, a smooth chat 30ms to 60ms. A change takes effect "
        "at the next tick, without a restart."
    )
    statistic: Statistic | None = Field(default=None, description=_STATISTIC)
    scope: LatencyScope | None = Field(
        default=None,
        description="Token: the statistic is taken over the times between two tokens, of all streams "
        "together. Request: over finished requests, each by its time per output token, which is the mean of "
        "its own: a p95 then says that 95 of 100 answers came at this pace or faster, however uneven they "
        "were. Engines whose figures come from /metrics alone have to be vLLM 0.11 or newer for it. Default: "
        "Token. A change takes effect at the next tick, without a restart.",
    )


class QueueTimeSLO(Group):
    """The objective for the time that a request waits in the engine before its first step."""

    target: Duration = Field(
        description="Upper bound of the waiting time, e.g. 5s: a number and a unit (ms, s, m, h). It is the "
        "other side of the trade: a lower cap makes streams smoother and the queue longer. A "
        "change takes effect at the next tick, without a restart."
    )
    statistic: Statistic | None = Field(default=None, description=_STATISTIC)


class SLOSpec(Group):
    """The objectives. With no interTokenLatency the batch objective holds: throughput as memory and
    plateau allow.
    """

    inter_token_latency: InterTokenLatencySLO | None = Field(
        default=None,
        description="The objective for the time between two outputs of one stream. Default: none, the batch "
        "objective: the cap rises to where throughput stops growing or memory binds.",
    )
    queue_time: QueueTimeSLO | None = Field(
        default=None,
        description="The objective for the time that a request waits before its first step; more replicas "
        "are asked for when it is missed. Default: none.",
    )
    precedence: Precedence | None = Field(
        default=None,
        description="Which of the two objectives is kept when the replicas allowed cannot hold both: "
        "InterTokenLatency or QueueTime. Has an effect only when both are declared. Default: "
        "InterTokenLatency.",
    )

"""How a pod ends without cutting a stream: three times that must fit each other.

On SIGTERM vLLM drains, yet it goes on accepting connections and aborts what comes in. So routers must have
stopped sending before SIGTERM, which is what the preStop sleep is for; the kubelet counts it into the grace
period. Then the engine drains for `--shutdown-timeout`, and the margin covers its own end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.release import SHUTDOWN_TIMEOUT_SINCE, Release
from llamaserver.desired.settings import BuildSettings


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Whole seconds. `drain` is None for engines that cannot drain: there the preStop sleep is the drain."""

    pre_stop: int
    drain: int | None
    grace_period: int


def shutdown(spec: EffectiveSpec, release: Release, settings: BuildSettings) -> Shutdown:
    """The three times for an engine of this release. Older engines wait the whole drain, idle or not."""
    drain = math.ceil(spec.drain_timeout.seconds)
    grace_period = settings.pre_stop_seconds + drain + settings.margin_seconds
    if release.has(SHUTDOWN_TIMEOUT_SINCE):
        return Shutdown(settings.pre_stop_seconds, drain, grace_period)
    return Shutdown(settings.pre_stop_seconds + drain, None, grace_period)

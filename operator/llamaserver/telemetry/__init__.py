"""What the operator says of itself: metrics, probes, logs."""

from llamaserver.telemetry.health import Canary, HealthServer, LoopLag, Probes
from llamaserver.telemetry.logs import KeyLogger, configure
from llamaserver.telemetry.metrics import Metrics

__all__ = ["Canary", "HealthServer", "KeyLogger", "LoopLag", "Metrics", "Probes", "configure"]

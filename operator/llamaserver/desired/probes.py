"""Probes: patient enough for an engine that is loading or saturated, and slower to kill than to unroute.

/health answers 200 as long as the engine's process lives; a stall behind it is found by the operator's
statistics. A saturated engine answers late: with Kubernetes' defaults (1 s, 3 failures) it is unrouted and
restarted under load.
"""

from __future__ import annotations

import math
from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.names import ENGINE_TLS_PORT_NAME

HEALTH_PATH: Final = "/health"
STARTUP_PERIOD_S: Final = 5


def probes(spec: EffectiveSpec, port: str) -> dict[str, dict[str, Any]]:
    """The three probes of the port of that name, by their names in a container. Only the startup probe waits
    for the start.
    """
    attempts = max(1, math.ceil(spec.startup_timeout.seconds / STARTUP_PERIOD_S))
    return {
        "startupProbe": _probe(port, period=STARTUP_PERIOD_S, timeout=5, failures=attempts),
        "readinessProbe": _probe(port, period=5, timeout=5, failures=6),
        "livenessProbe": _probe(port, period=15, timeout=10, failures=12),
    }


def _probe(port: str, *, period: int, timeout: int, failures: int) -> dict[str, Any]:
    # The kubelet asks the pod's address, and takes any certificate.
    scheme = {"scheme": "HTTPS"} if port == ENGINE_TLS_PORT_NAME else {}
    return {
        "httpGet": {"path": HEALTH_PATH, "port": port, **scheme},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }

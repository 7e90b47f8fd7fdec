"""Two fleets of simulated engines without the tuner whose objective is missed from the start, on and on."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime

from harness import simulated
from harness.fleet import Fleet, Load
from harness.kube import Kube, Object
from harness.manifests import slo
from scenarios.terms import NAMESPACE

TARGET_MS = 55
ARGUMENTS = ["--profile=CPU", "--speed=0.25", "--no-tuner"]
"""About 62 ms a token for 16 streams, 100 for 32, and 52 for twelve."""
CPU = {"requests": {"cpu": "200m", "memory": "64Mi"}}
"""Enough to answer probes beside other engines: a pod that is not ready begins the ten minutes anew."""
STREAMS, MORE = 16, 16
WAVE_S = 30.0
"""More streams for so long, and none of them for as long: what fewer would give has to show."""
LONGEST_S = 3600.0
"""They begin before the first scenario and are looked at after all that need no shared engine."""


class Slow:
    """`asked` may be restarted for another cap, `left` may not, and is as slow."""

    def __init__(self, kube: Kube) -> None:
        self.asked, self.left = (
            simulated.fleet(kube, name, NAMESPACE, TARGET_MS) for name in ("slow-asked", "slow-left")
        )
        self._until_end = ExitStack()
        self._loads: list[Load] = []

    def begin(self) -> None:
        """Declare both, and have streams at each once they serve; those of one come in waves.

        Of that moment are `began`, `first`, the pod that may go, and `kept`, the engines that may not.
        """
        self.asked.apply(declared(self.asked, {"restart": {"minInterval": "1h"}}))
        self.left.apply(declared(self.left, {}))
        for fleet in (self.asked, self.left):
            fleet.wait_ready()
        self.first = self.asked.engine_pod()
        self.kept = self.left.engines()
        self.began = datetime.now(UTC)
        wave = ("--wave", str(WAVE_S))
        for fleet, streams, flags in (
            (self.asked, STREAMS, ()),
            (self.asked, MORE, wave),
            (self.left, STREAMS, ()),
        ):
            load = fleet.load(streams, *flags, seconds=LONGEST_S)
            self._loads.append(self._until_end.enter_context(load))

    def check_running(self) -> None:
        """Raise WaitError unless all streams go on: without them no objective is missed."""
        for load in self._loads:
            load.check_running()

    def end(self) -> None:
        """End the streams and both fleets, if that is still to be done."""
        self._until_end.close()
        for fleet in (self.asked, self.left):
            fleet.kube.delete("llamaserver", fleet.name, NAMESPACE)


def declared(fleet: Fleet, tuning: Object) -> Object:
    """The manifest; `tuning` is more of spec.tuning."""
    made = simulated.resource(
        fleet, ARGUMENTS, {"resources": CPU}, objective=slo(TARGET_MS, "mean"), drain="5s"
    )
    made["spec"]["tuning"] |= tuning
    return made

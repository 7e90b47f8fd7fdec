"""Before replicas are lowered, the pods that are to go are marked: those with the fewest requests.

All that is remembered of a scale-down is in the cluster: a pod that is to go carries COST, and is gone when
it is over. A mark on a pod that stays, because the step was taken back or another pod died first, is taken
away at a later look. So an operator that ends at any point leaves nothing that its successor does not see.

Nothing is done to the engine of a pod that goes. It is out of the Service, so its own streams leave room as
they end, and those that still wait for a place need one within the drain: a lower cap would have them cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llamaserver.api.podtemplate import DELETION_COST
from llamaserver.cluster import ApiError, Kube, NotLeadingError, Recorder, Reference
from llamaserver.cluster.kinds import DEPLOYMENT, POD, SCALE_DOWN_MANAGER, Object
from llamaserver.control.victims import Candidate, unseen, victims
from llamaserver.controller import announce
from llamaserver.controller.cache import Cache
from llamaserver.controller.diff import digest, mark_of
from llamaserver.controller.facts import rollout
from llamaserver.controller.pods import Pod, read
from llamaserver.controller.rollouts import new_cause
from llamaserver.controller.runtime import Report, Server
from llamaserver.observe import FORGIVEN_SCRAPES
from llamaserver.telemetry import KeyLogger

_log = logging.getLogger(__name__)

COST = "-1"
"""Lower than that of a pod without a cost, which is 0. One that somebody sets lower still goes first."""
LOOK_AGAIN_S = 1.0
PATIENCE_S = 20.0
"""As long as the first figures after a restart of the operator may take to be told."""


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """Marks and unmarks pods.

    For `patience_s` a scale-down waits for figures, or for marks that the API server does not take.
    """

    kube: Kube
    cache: Cache
    recorder: Recorder
    monotonic: Callable[[], float]
    patience_s: float = PATIENCE_S

    async def prepare(
        self, server: Server, current: int | None, wanted: int | None, unscaled: Callable[[], Object]
    ) -> int | None:
        """The number of replicas to ask for now: `wanted`, or `current` while a scale-down has to wait.

        `current` is what the Deployment asks for, None where there is none; `wanted` None means that the
        number is somebody else's. `unscaled` builds the Deployment that is wanted, with `current` replicas.
        A scale-down is late rather than blind, but not for ever: after the patience it goes on with what is
        known, and says so. One that would leave a rollout free to end the last pod that serves waits until
        the rollout is over, or taken back; also for one that would begin with the same write.

        Raises:
            NotLeadingError: a pod was to be written, and this replica cannot prove that it leads.
            ApiError: the Deployment could not be read.
        """
        alive = [pod for obj in self.cache.pods(server.key) if not (pod := read(obj)).ending]
        if current is None or wanted is None or wanted >= current:
            server.shrinks_since = None
            await self._settle(server, alive, current)
            return wanted
        if wanted == 0 or len(alive) <= wanted:
            server.shrinks_since = None
            return wanted
        endangers = await self._endangers(server, current, wanted, unscaled)
        if endangers is not False:
            # Begun anew when its time has come, for then it has to know what runs where.
            server.shrinks_since = None
            if endangers:
                self._tell_wait(server, f"replicas {current} -> {wanted}")
            return current
        now = self.monotonic()
        server.shrinks_since = now if server.shrinks_since is None else server.shrinks_since
        candidates = self._candidates(server, alive, server.shrinks_since)
        going = victims(candidates, len(alive) - wanted)
        problem, waits = _blind(unseen(candidates, going)), now - server.shrinks_since < self.patience_s
        if not (problem and waits):
            problem = await self._mark(server, alive, going) or problem
        if problem and waits:
            return current
        self._tell(server, f"replicas {current} -> {wanted}", going, problem)
        return wanted

    async def _endangers(
        self, server: Server, current: int, wanted: int, unscaled: Callable[[], Object]
    ) -> bool | None:
        """Whether pods are being replaced, or will be by the next write, and with so few replicas all of them
        might be ended at once; None until the Deployment's controller has told.

        It takes a smaller number from both versions, from the older one first, and keeps no more pods than
        the number less those that may be down. So the pods that go can be the ones that serve, while those of
        a version that does not start stay.
        """
        down = server.spec.max_unavailable if server.spec is not None else 0
        if not wanted <= down < current:
            return False
        known = self.cache.deployment(server.key)
        mark = mark_of(known) if known is not None else ""
        state = rollout(known, mark, server.settled)
        if state.total > state.updated:
            return True
        if not state.current:
            return None
        deployment = unscaled()
        if mark == digest(deployment):
            # Made from this already. Whatever the API server has not kept of it is no change to come.
            return False
        live = await self.kube.get(DEPLOYMENT, *server.key)
        return live is not None and bool(new_cause(live, deployment))

    def _tell_wait(self, server: Server, step: str) -> None:
        about = Reference(server.key.namespace, server.key.name, server.uid)
        announce.scale_down_waits(self.recorder, about, step)

    async def _settle(self, server: Server, alive: Sequence[Pod], current: int | None) -> None:
        """Once there are no more pods than the Deployment asks for, none is to go."""
        if current is not None and len(alive) <= current and (problem := await self._unmark(server, alive)):
            KeyLogger(_log, *server.key).warning("a pod that stays is still marked to go first: %s", problem)

    def _tell(self, server: Server, step: str, going: Iterable[Candidate], problem: str) -> None:
        KeyLogger(_log, *server.key).info("%s, to go: %s", step, ", ".join(map(_told, going)))
        if problem:
            about = Reference(server.key.namespace, server.key.name, server.uid)
            announce.victim_uncertain(self.recorder, about, step, problem)

    def _candidates(self, server: Server, alive: Iterable[Pod], since: float) -> list[Candidate]:
        loads = server.loads() if self._is_fresh(server.newest, since) else {}
        return [Candidate(pod.name, pod.stage, loads.get(pod.name), pod.made_at) for pod in alive]

    def _is_fresh(self, report: Report | None, since: float) -> bool:
        """A pod that was idle at the last tick may be the busiest by now, so pods are asked once more before
        one has to go. Figures that a Prometheus scrapes get old before there are others.
        """
        if report is None:
            return False
        if report.every_s is None:
            return report.asked_at >= since
        return self.monotonic() - report.at <= max(self.patience_s, FORGIVEN_SCRAPES * report.every_s)

    async def _mark(self, server: Server, alive: Sequence[Pod], going: Iterable[Candidate]) -> str:
        """Mark those that go, and nobody else. Returns why that could not be done, or an empty text."""
        names = {candidate.name for candidate in going}
        kept = await self._unmark(server, [pod for pod in alive if pod.name not in names])
        fresh = [pod for pod in alive if pod.name in names and pod.deletion_cost != COST]
        problems = await asyncio.gather(*(self._apply(server, pod, {DELETION_COST: COST}) for pod in fresh))
        return next(filter(None, [*problems, kept]), "")

    async def _unmark(self, server: Server, pods: Iterable[Pod]) -> str:
        """Take marks away. Returns why one could not be, or an empty text; the next look tries again."""
        marked = [pod for pod in pods if pod.deletion_cost]
        problems = await asyncio.gather(*(self._apply(server, pod, {}) for pod in marked))
        return next(filter(None, problems), "")

    async def _apply(self, server: Server, pod: Pod, annotations: dict[str, str]) -> str:
        """Have written exactly these annotations on that very pod; whatever others wrote stays.

        Returns why it was refused, or an empty text. A pod that has gone in the meantime is refused too, and
        missing in the cache at the next look.
        """
        named = {"namespace": server.key.namespace, "name": pod.name, "uid": pod.uid}
        metadata: Object = {**named, "annotations": annotations} if annotations else {**named}
        obj: Object = {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata}
        try:
            applied = await self.kube.apply(obj, manager=SCALE_DOWN_MANAGER)
        except NotLeadingError:
            raise
        except ApiError as error:
            return f"pod {pod.name}: {error}"
        self.cache.put(POD, applied)
        return ""


def _blind(names: Sequence[str]) -> str:
    return f"no figures of {', '.join(names)}" if names else ""


def _told(pod: Candidate) -> str:
    load = "an unknown number of" if pod.load is None else pod.load
    return f"{pod.name} ({pod.stage.name}, {load} requests)"

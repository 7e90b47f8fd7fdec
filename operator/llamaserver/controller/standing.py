"""How a fleet stands: its pods, and what is under way that nothing else may come on top of."""

from __future__ import annotations

from llamaserver.control.recovery import Replica, Standing
from llamaserver.controller.cache import Cache
from llamaserver.controller.facts import Rollout, rollout
from llamaserver.controller.pods import Pod, read
from llamaserver.controller.runtime import Server


def standing(cache: Cache, server: Server, scaling: bool) -> Standing:
    """The fleet as the cache shows it. `scaling` says that a change of the number of replicas is not done."""
    state = rollout(cache.deployment(server.key), server.wanted_mark, server.settled)
    return Standing(
        wanted=state.wanted,
        replicas=[
            Replica(
                pod.name,
                pod.ready,
                pod.target.incarnation if pod.target else "",
                pod.engine_started.timestamp() if pod.engine_started else float("-inf"),
            )
            for pod in alive(cache, server)
        ],
        # One that has failed, or was evicted by its kubelet, holds nothing, and may be there for ever.
        ending=sum(read(obj).terminating for obj in cache.pods(server.key)),
        busy=_busy(state, scaling),
    )


def alive(cache: Cache, server: Server) -> list[Pod]:
    """The pods that are not ending."""
    return [pod for obj in cache.pods(server.key) if not (pod := read(obj)).ending]


def _busy(state: Rollout, scaling: bool) -> str:
    if not state.complete:
        return "a rollout is under way"
    if scaling or state.total != state.wanted:
        return "the number of replicas is changing"
    return "" if state.ready >= state.wanted else f"{state.ready} of {state.wanted} replicas are ready"

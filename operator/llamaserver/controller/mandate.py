"""Who may change engines: the leader, also while the API server is gone, but never against another leader.

The leader lease lives in the API server. While that cannot be reached nobody can take the Lease, so the
holder goes on tuning from what it knows. Only one thing is dangerous then: that the API server is gone for
this replica alone, and that another one has taken over. The engines tell: every change carries a generation,
one more than the last that the engine applied, and the snapshot reads it back. A generation that this replica
did not set was set by another leader. From then on this replica changes nothing until it has renewed its
Lease.

For that to be seen, a leader that can prove it leads makes itself known: an engine that runs with somebody
else's change gets one of its own at once, even where nothing has to change (`claims`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llamaserver.controller.queue import Key


@dataclass
class Mandate:
    """The right to change engines, judged anew at each tick.

    `holds` and `proven` are the elector's. `stranger` names the pod on which another leader's change was
    seen. Pods are told apart by namespace and name: two namespaces may hold pods of one name.
    """

    holds: Callable[[], bool]
    proven: Callable[[], bool]
    stranger: str = ""
    claims: set[Key] = field(default_factory=set)
    """Pods that run with a change that is not ours, while we lead for certain."""
    _set: dict[tuple[Key, str], int] = field(default_factory=dict)

    def may_change(self) -> bool:
        """True when engines may be changed now."""
        if self.proven():
            self.stranger = ""
            return True
        return self.holds() and not self.stranger

    def saw(self, pod: Key, incarnation: str, generation: int) -> None:
        """A snapshot of `pod` read back `generation`. To be called before deciding on changes."""
        ours = self._set.get((pod, incarnation))
        if self.proven():
            if generation > (ours or 0):
                self.claims.add(pod)
            self._set[pod, incarnation] = max(generation, ours or 0)
        elif ours is None:
            self._set[pod, incarnation] = generation
        elif generation > ours:
            self.stranger = str(pod)

    def claimed(self, namespace: str) -> set[str]:
        """Names of the claimed pods in a namespace."""
        return {pod.name for pod in self.claims if pod.namespace == namespace}

    def changed(self, pod: Key, incarnation: str, generation: int) -> None:
        """A change of ours was sent to `pod`, whether or not the answer came back."""
        self._set[pod, incarnation] = max(generation, self._set.get((pod, incarnation), 0))
        self.claims.discard(pod)

    def forget(self, pod: Key) -> None:
        """The pod is gone."""
        self.claims.discard(pod)
        for key in [key for key in self._set if key[0] == pod]:
            del self._set[key]

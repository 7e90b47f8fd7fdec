"""Whether a pod whose engine hangs is replaced now.

Rather a pod too few than one too many: a replacement costs a start, and the streams of everybody if the
evidence was wrong. So it is done one at a time, on the scheduler's own account alone, while nothing else is
under way and every other replica serves; and each makes the next wait longer, because what hangs again and
again is not cured by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamaserver.control.types import StalledEngine
from llamaserver.observe.types import Doubt

ANSWERS = 5
"""Fewer answers are no watch kept."""
FIRST_PAUSE_S = 600.0
LONGEST_PAUSE_S = 6 * 3600.0
FORGOTTEN_S = 24 * 3600.0
"""After so long a replacement is forgotten, and the next pause is the first again."""
APART_S = 120.0
"""From one replacement to the next among all LlamaServers. What makes engines of many hang at once (storage,
a driver, a network) is not cured pod by pod, and the starts would be all at once.
"""
LOOK_AGAIN_S = 20.0
BY_PROMETHEUS = (
    "no pod is replaced: figures come from Prometheus, and only the engine's own account is enough for that"
)


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod that is not ending."""

    name: str
    ready: bool
    incarnation: str
    """Of the engine's container that runs now; empty where none does."""
    started_at: float = float("-inf")
    """When that container started, Unix seconds; long ago where it does not say."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The fleet as Kubernetes shows it."""

    wanted: int
    replicas: Sequence[Replica]
    ending: int
    busy: str = ""
    """What is under way, as the end of a sentence; empty where nothing is."""


@dataclass(frozen=True, slots=True)
class Past:
    """The last replacement: of which pod, none where it came to nothing, and when its eviction was last asked
    for, in Unix seconds. `count` are those of which each came before the one before it was forgotten.
    """

    pod: str = ""
    at: float = float("-inf")
    count: int = 0


@dataclass(frozen=True, slots=True)
class Replace:
    """Have this pod go. `again` means that this was decided before, for the same standstill, and is not done
    yet.
    """

    engine: StalledEngine
    count: int
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """An engine hangs, and this is why its pod stays for now. Look again after so many seconds."""

    reason: str
    again_s: float = LOOK_AGAIN_S


def replacement(
    after_s: float,
    stalled: Sequence[StalledEngine],
    fleet: Standing,
    past: Past,
    now: float,
    elsewhere_at: float = float("-inf"),
) -> Replace | Wait | None:
    """What to do about the engines that hang: nothing (None) where none does.

    `after_s` is how long the user has an engine hang before its pod is replaced; never shorter than the grace
    by which it is reported. `now` in Unix seconds, as in `past`, and `elsewhere_at`, when a pod of another
    LlamaServer was replaced last.
    """
    alive = {replica.name: replica for replica in fleet.replicas}
    here = [engine for engine in stalled if engine.pod in alive and _of(engine, alive[engine.pod])]
    if not here:
        return None
    sure = [engine for engine in here if not _doubt(engine)]
    if not sure:
        return Wait(f"pod {here[0].pod} is not replaced: {_doubt(here[0])}")
    # One that was chosen before goes first, so that there are never two.
    victim = min(sure, key=lambda engine: (engine.pod != past.pod, -engine.still_s, engine.pod))
    if (left := max(after_s, victim.grace_s) - victim.still_s) > 0:
        return Wait(f"pod {victim.pod} is replaced if it hangs on", min(max(1.0, left), LOOK_AGAIN_S))
    if (found := obstacle(fleet)) != "":
        return Wait(f"the replacement of pod {victim.pod} waits: {found}")
    forgotten = now - past.at > FORGOTTEN_S
    again = not forgotten and _same(victim, alive[victim.pod], past, now)
    count = 0 if forgotten else past.count
    if not again and now < past.at + pause_s(count):
        return Wait(
            f"the replacement of pod {victim.pod} waits: {count} in a row so far, and the next comes "
            f"{pause_s(count) / 60:g} minutes after the last at the earliest"
        )
    if now < elsewhere_at + APART_S:
        return Wait(
            f"the replacement of pod {victim.pod} waits: a pod of another LlamaServer was replaced less than "
            f"{APART_S / 60:g} minutes ago"
        )
    return Replace(victim, count if again else count + 1, _why(victim), again)


def pause_s(count: int) -> float:
    """Seconds from the last of `count` replacements to the next."""
    return 0.0 if count <= 0 else min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 16), LONGEST_PAUSE_S)


def _same(engine: StalledEngine, replica: Replica, past: Past, now: float) -> bool:
    """Whether this very standstill was decided upon. One that began later, or in an engine that was started
    later, is another; of one that nobody saw begin, it is taken for granted: its pod was to go.
    """
    later = replica.started_at > past.at or (engine.witnessed and now - engine.still_s > past.at)
    return engine.pod == past.pod and not later


def _of(engine: StalledEngine, replica: Replica) -> bool:
    """Whether that engine is the one that runs in the pod now."""
    return bool(replica.incarnation) and f"{engine.incarnation}/".startswith(f"{replica.incarnation}/")


def _doubt(engine: StalledEngine) -> str:
    match engine.doubt:
        case Doubt.METRICS:
            return (
                "/metrics alone may show requests that were aborted long ago, and its tuner does not answer"
            )
        case Doubt.PROMETHEUS:
            return "figures of a Prometheus may show requests that were aborted long ago"
        case Doubt.STEPS_UNKNOWN:
            return "its tuner has ceased to count the engine's steps"
        case Doubt.PAUSE_UNKNOWN:
            return "its tuner is too old to tell whether somebody told the engine to pause"
    if not engine.worked:
        return "its core is silent, and was never heard to have a request in hand"
    if engine.answers < ANSWERS:
        return "it has not been watched for long enough"
    return ""


def obstacle(fleet: Standing) -> str:
    """What is under way in a fleet, so that no pod of it may be taken down; empty where nothing is."""
    if fleet.busy:
        return fleet.busy
    if fleet.ending:
        return "1 pod is still ending" if fleet.ending == 1 else f"{fleet.ending} pods are still ending"
    if len(fleet.replicas) != fleet.wanted:
        return f"there are {len(fleet.replicas)} pods of {fleet.wanted}"
    if unready := [replica.name for replica in fleet.replicas if not replica.ready]:
        return f"pod {unready[0]} is not ready"
    return ""


def _why(engine: StalledEngine) -> str:
    who = "the engine" if engine.engine is None else f"engine {engine.engine}"
    seen = "its core is silent" if engine.silent else "no step and no token"
    return (
        f"{who} hangs: {seen} for {engine.still_s:.0f} s in {engine.answers} answers, with "
        f"{engine.running} requests running and {engine.waiting} waiting; more than {engine.grace_s:.0f} s "
        "is no long step any more"
    )

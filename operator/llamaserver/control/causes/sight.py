"""Causes that are about what can be seen: engines that stand still, and engines that tell nothing."""

from __future__ import annotations

from llamaserver.control.causes.finding import Finding
from llamaserver.control.facts import Facts
from llamaserver.control.stalls import stalled_engines
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause, StalledEngine
from llamaserver.observe.types import Doubt


def stalled(facts: Facts, _: DemandState) -> Finding | str:
    for engine in stalled_engines(facts):
        return _stall(engine)
    return "every engine with work moves, or has not been still for long"


def _stall(engine: StalledEngine) -> Finding:
    who = engine.pod if engine.engine is None else f"Engine {engine.engine} of {engine.pod}"
    work = f"{engine.running} requests running and {engine.waiting} waiting"
    seen = (
        f"The server of {engine.pod} answers, but its engine core has not for {engine.still_s:.0f} s, last "
        f"seen with {work}"
        if engine.silent
        else f"{who} answers, with {work}, but for {engine.still_s:.0f} s no step was made and no token came"
    )
    advice = f"Look at the log of {engine.pod} and delete the pod if a request of your own hangs too"
    if engine.doubt is None:
        after = "; spec.recovery.replaceStalledAfter has that done." if engine.worked else "."
    elif engine.doubt is Doubt.PAUSE_UNKNOWN:
        after = ". If somebody told the engine to pause, have it go on: its tuner is too old to tell."
    else:
        after = ". If one is answered, the figures were left over from aborted requests and right themselves."
    return Finding(
        Cause.STALLED,
        f"{seen} (more than {engine.grace_s:.0f} s is no long step any more).",
        advice + after,
        {
            "pod": engine.pod,
            "still_s": round(engine.still_s, 1),
            "grace_s": round(engine.grace_s, 1),
            "answers": engine.answers,
            "running": engine.running,
            "waiting": engine.waiting,
            "core": "silent" if engine.silent else "answers",
            **({} if engine.engine is None else {"engine": engine.engine}),
        },
    )


def stale(facts: Facts, _: DemandState) -> Finding | str:
    if facts.pods:
        return "at least one replica gives usable figures"
    if not facts.blind:
        return Finding(
            Cause.STALE,
            f"No replica to observe: {facts.fleet.ready} of {facts.fleet.replicas} are ready.",
            "",
            {"ready": facts.fleet.ready, "replicas": facts.fleet.replicas},
        )
    worst = max(facts.blind, key=lambda p: facts.now - p.since)
    return Finding(
        Cause.STALE,
        f"No replica gives usable figures; {worst.pod}: {worst.message} ({worst.why}). Holding.",
        "",
        {"pod": worst.pod, "why": worst.why.value, "for_s": round(facts.now - worst.since, 1)},
    )

"""The objects that a spec names and that must be there before a pod can have its volumes.

They are read one by one and not watched, for which the operator has no right and needs none. Without them a
pod waits for ever, and says so late, in an Event, or not at all; and the pod that it is to replace would be
gone. So a spec that names one that is not there, and would have pods started from it, is not acted upon until
it is. One that starts pods from nothing else than the spec in force replaces none, so it is, and tells what
is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from llamaserver.api.conditions import ConditionStatus, ConditionType, Reason, find_condition
from llamaserver.api.errors import InvalidSpec, Problem
from llamaserver.api.references import claims_of, text_keys_of
from llamaserver.api.server import LlamaServer
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.cluster import ApiError, Kube
from llamaserver.cluster.kinds import CLAIM, CONFIG_MAP, Kind, Object
from llamaserver.controller.moments import latest, moment
from llamaserver.controller.queue import Key
from llamaserver.controller.runtime import Referent, Server
from llamaserver.telemetry import KeyLogger

_log = logging.getLogger(__name__)

KEPT_S: Final = 300.0
"""How long what was read is believed."""
AGAIN_S: Final = 10.0
"""How often what is missing is looked for."""
_EARLY_S: Final = 1.0
"""A look that comes by this much too early counts as in time."""

_Names = Mapping[tuple[Kind, str], frozenset[str]]
"""What to read, with the keys that a ConfigMap has to have."""


class MissingReference(InvalidSpec):
    """The spec names an object, or a key of one, that does not exist. It may come to be without another
    spec.
    """


async def check(server: Server, candidate: LlamaServer, kube: Kube, now: float) -> None:
    """Read what `candidate`, and the spec in force, name, as far as it is not known from lately.

    Raises MissingReference, with every field, where something that `candidate` names is not there. What
    cannot be read is not known, and no reason to leave the rest undone.
    """
    specs = [candidate.spec, *([server.parsed.spec] if server.parsed else [])]
    wanted = _wanted(specs)
    server.seen = {ref: await _look(server, ref, keys, kube, now) for ref, keys in wanted.items()}
    if found := list(_missing(candidate.spec, server.key, server.seen)):
        first, *more = found
        raise MissingReference(first.field, first.message, *more)


def claims(seen: Mapping[tuple[Kind, str], Referent]) -> dict[str, Object]:
    """The claims that are there, by name."""
    return {name: it.obj for (kind, name), it in seen.items() if kind is CLAIM and it.obj is not None}


def missing_since(server: Server, now: datetime) -> datetime | None:
    """Since when something that the present spec names is missing; None where nothing is.

    An operator that has just started asks the status. A condition dates its status and not its reason, so one
    that was False for another reason before looks older; but it was a stall then, and is none since.
    """
    if not isinstance(server.invalid, MissingReference):
        return None
    if server.missing_since is not None:
        return server.missing_since
    conditions = (server.written.conditions if server.written else None) or ()
    told = find_condition(conditions, ConditionType.ACCEPTED)
    if told is None or told.reason != Reason.REFERENCE_NOT_FOUND:
        return now
    stalled = find_condition(conditions, ConditionType.STALLED)
    ended = stalled if stalled is not None and stalled.status is ConditionStatus.FALSE else told
    return latest(moment(told.last_transition_time), moment(ended.last_transition_time)) or now


def _wanted(specs: Iterable[LlamaServerSpec]) -> dict[tuple[Kind, str], frozenset[str]]:
    wanted: dict[tuple[Kind, str], frozenset[str]] = {}
    for spec in specs:
        for claim in claims_of(spec):
            wanted[CLAIM, claim.name] = frozenset()
        for text in text_keys_of(spec):
            ref = (CONFIG_MAP, text.name)
            wanted[ref] = wanted.get(ref, frozenset()) | {text.key}
    return wanted


async def _look(
    server: Server, ref: tuple[Kind, str], keys: frozenset[str], kube: Kube, now: float
) -> Referent:
    kind, name = ref
    before = server.seen.get(ref)
    if before is not None:
        complete = before.known and before.obj is not None and keys <= set(before.obj.get("keys", ()))
        if now - before.at < (KEPT_S if complete else AGAIN_S - _EARLY_S):
            return before
    try:
        live = await kube.get(kind, server.key.namespace, name)
    except ApiError as error:
        KeyLogger(_log, *server.key).warning("the %s %s cannot be read: %s", kind.kind, name, error)
        return Referent(now, known=False, obj=None)
    return Referent(now, known=True, obj=None if live is None else _kept(kind, live))


def _kept(kind: Kind, live: Object) -> Object:
    """What is remembered of an object: no content, which may be large and is nobody's business."""
    if kind is CONFIG_MAP:
        return {"keys": sorted({*(live.get("data") or ()), *(live.get("binaryData") or ())})}
    return {part: {"accessModes": (live.get(part) or {}).get("accessModes")} for part in ("spec", "status")}


def _missing(spec: LlamaServerSpec, key: Key, seen: Mapping[tuple[Kind, str], Referent]) -> Iterator[Problem]:
    for claim in claims_of(spec):
        if _is_gone(seen[CLAIM, claim.name]):
            yield Problem(claim.field, _none(CLAIM, claim.name, key.namespace))
    for text in text_keys_of(spec):
        found = seen[CONFIG_MAP, text.name]
        if _is_gone(found):
            yield Problem(f"{text.field}.name", _none(CONFIG_MAP, text.name, key.namespace))
        elif found.obj is not None and text.key not in found.obj["keys"]:
            has = ", ".join(found.obj["keys"]) or "none"
            yield Problem(
                f"{text.field}.key",
                f"the ConfigMap {text.name} has no key {text.key}: add it, or write one that it has ({has})",
            )


def _is_gone(seen: Referent) -> bool:
    return seen.known and seen.obj is None


def _none(kind: Kind, name: str, namespace: str) -> str:
    return f"there is no {kind.kind} {name} in namespace {namespace}: create it, or write the name of one"

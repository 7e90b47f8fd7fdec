"""Writes down what a tick decided, and later what came of it. What it writes is status.decisions; it changes
nothing else, except that a decided number of replicas is remembered for reconcile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import ScalingMode, TuningMode
from llamaserver.api.status import DecisionStatus
from llamaserver.control import Decision, Fleet
from llamaserver.controller import journal, retune
from llamaserver.controller.effects import Seen, figures, follow
from llamaserver.controller.report import Outcome, after, word
from llamaserver.controller.runtime import DRAINING, Followed, Report, Server
from llamaserver.engine import Applied, Refused
from llamaserver.observe import Sample
from llamaserver.telemetry import KeyLogger, Metrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notes:
    """The pen of the fast loop."""

    metrics: Metrics
    monotonic: Callable[[], float]
    wall: Callable[[], datetime]

    def retunes(
        self,
        server: Server,
        spec: EffectiveSpec,
        decision: Decision,
        outcomes: Sequence[Outcome],
        samples: Mapping[str, Sample],
    ) -> None:
        """What was changed in engines, what an engine refused, and what mode Recommend would have done."""
        recommends = spec.tuning_mode is TuningMode.RECOMMEND and not spec.suspended
        if recommends:
            moves = _recommendations(server, decision, samples)
        else:
            # One that only did not answer this time is still decided for.
            for gone in server.refused.keys() - samples.keys() - decision.setpoints.keys():
                del server.refused[gone]
            moves = [*_applied(server, outcomes), *_refusals(server, outcomes)]
        pods = {move.pod for move in moves}
        reason = journal.why(decision, pods)
        told = journal.inputs(decision, figures(decision.observed), pods)
        for entry in journal.retunes(moves, reason, self.wall(), recommends, told):
            self._write(server, entry, decision)

    def replicas(self, server: Server, spec: EffectiveSpec, decision: Decision, fleet: Fleet) -> bool:
        """Whether another number was decided. Replicas go through reconcile, which is the one writer of the
        Deployment.
        """
        if spec.suspended:
            return False
        reason = decision.replicas_reason or decision.diagnosis.message
        told = journal.inputs(decision, figures(decision.observed), rule=journal.REPLICAS_RULE)
        if spec.scaling_mode is ScalingMode.AUTO:
            number = decision.replicas
            before = fleet.replicas if server.decided_replicas is None else server.decided_replicas
            if number is None or number == before:
                return False
            server.decided_replicas = number
            self._write(server, journal.scaled(before, number, reason, self.wall(), False, told), decision)
            return True
        if spec.scaling_mode is ScalingMode.RECOMMEND:
            number = decision.recommended_replicas
            if number is None or number == server.recommended_replicas:
                return False
            server.recommended_replicas = number
            if number != fleet.replicas:
                entry = journal.scaled(fleet.replicas, number, reason, self.wall(), True, told)
                self._write(server, entry, decision)
        return False

    def follow(self, server: Server, told: Report, ready: int) -> bool:
        """Add what has come of earlier decisions. Whether there was anything to add."""
        if not server.followed:
            return False
        draining = any(pod.state == DRAINING for pod in told.pods)
        seen = Seen(told.decision.observed, ready, draining, self.monotonic())
        server.followed, decisions = follow(server.followed, server.decisions, seen)
        if decisions == list(server.decisions):
            return False
        server.decisions.clear()
        server.decisions.extend(decisions)
        return True

    def _write(self, server: Server, entry: DecisionStatus, decision: Decision) -> None:
        server.decisions.appendleft(entry)
        about = KeyLogger(_log, *server.key)
        outcome = entry.outcome or ""
        if outcome.startswith(journal.REFUSED):
            about.warning("%s %s -> %s: %s", entry.action, entry.from_, entry.to, outcome)
            return
        recommended = outcome == journal.RECOMMENDED
        label = entry.action
        if recommended and entry.action != journal.REPLICAS:
            label = f"Recommend{entry.action}"
        self.metrics.decisions.labels(label).inc()
        if not recommended:
            server.followed.append(Followed(entry, decision.observed, self.monotonic()))
        about.info("%s %s -> %s: %s", entry.action, entry.from_, entry.to, entry.reason)


def _applied(server: Server, outcomes: Sequence[Outcome]) -> list[journal.Move]:
    moves = []
    for outcome in outcomes:
        if isinstance(outcome.answer, Applied):
            change = outcome.change
            server.refused.pop(change.pod, None)
            moves.append(journal.Move(change.pod, change.before, after(outcome.answer)))
    return moves


def _refusals(server: Server, outcomes: Sequence[Outcome]) -> list[journal.Move]:
    """What engines refuse, once for each reason until they do as they are told: they are asked again with
    every tick, and may say now one reason and now another.
    """
    moves = []
    for outcome in outcomes:
        change, answer = outcome.change, outcome.answer
        if not isinstance(answer, Refused) or change.renewal:
            continue
        told = server.refused.setdefault(change.pod, set())
        if word(answer) in told:
            continue
        told.add(word(answer))
        setpoint = change.setpoint
        asked = _with(change.before, setpoint.max_num_active_seqs, setpoint.max_num_scheduled_tokens)
        text = f"{word(answer)}: {answer.message}" if answer.message else word(answer)
        moves.append(journal.Move(change.pod, change.before, asked, refused=text))
    return moves


def _recommendations(server: Server, decision: Decision, samples: Mapping[str, Sample]) -> list[journal.Move]:
    """What mode Recommend would do and has not said yet."""
    named = journal.recommended(decision)
    fresh = [pod for pod in sorted(named) if pod in samples and server.recommended.get(pod) != named[pod]]
    server.recommended = named
    return [
        journal.Move(pod, before, _with(before, named[pod].num_seqs, named[pod].num_scheduled_tokens))
        for pod in fresh
        for before in [retune.in_force(samples[pod])]
    ]


def _with(before: retune.InForce, seqs: int | None, tokens: int | None) -> retune.InForce:
    """What would be in force; None leaves a knob."""
    return replace(
        before,
        num_seqs=before.num_seqs if seqs is None else seqs,
        num_scheduled_tokens=before.num_scheduled_tokens if tokens is None else tokens,
    )

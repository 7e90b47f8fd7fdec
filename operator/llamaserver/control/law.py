"""One tick of control for one LlamaServer: windows in, decision out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from llamaserver.api.enums import TuningMode
from llamaserver.control import answers, binding, imbalance, kv, straggler, trend
from llamaserver.control import facts as about
from llamaserver.control.context import Context, budget_use
from llamaserver.control.diagnosis import ailing, diagnose
from llamaserver.control.facts import Facts
from llamaserver.control.model import StepModel, agreeing, block_of, update
from llamaserver.control.objective import QUANTILES
from llamaserver.control.pods import PodFacts, load_of, with_window, without_window
from llamaserver.control.relief import relief
from llamaserver.control.replicas import decide_replicas
from llamaserver.control.stalls import moving, stalled_engines
from llamaserver.control.state import Learned, Moment, PodState, State
from llamaserver.control.types import Decision, Fleet, Limits, Objective, Observed, Setpoint, Verdict
from llamaserver.control.wording import in_words
from llamaserver.observe.fleet import aggregate, blind, usable
from llamaserver.observe.types import Window, Windows

QUEUE_SEEN_S = 30.0
KAPPA_WEIGHT = 0.1


def decide(
    objective: Objective, limits: Limits, state: State, windows: Windows, fleet: Fleet, now: float
) -> tuple[State, Decision]:
    """What to do now. The same arguments always give the same answer; nothing is read but them.

    Never raises for any windows that `observe.advance` can produce.
    """
    dt = max(0.0, now - state.ticked_at)
    good = usable(windows)
    blocks = {w.pod: block for w in good if (block := block_of(w)) is not None}
    model = update(state.model, agreeing(state.model, list(blocks.values())), dt)
    pace = straggler.follow(state.pace, model, blocks, good, windows.keys(), dt, now)
    pods, setpoints, seen, trail = _pods(objective, limits, state, model, windows, now)
    moments = _moments(state, windows, now)
    waiting = sum(w.waiting_for_room for w in good)
    queue_now_s = about.queue_now(objective, moments, waiting, now)
    finished = state.finished
    if objective.of_requests:
        finished = answers.remembered(finished, moments[-1].fleet.tpot, objective.itl_statistic, now)
    observed = about.observed(objective, moments, queue_now_s, now, finished)
    facts = Facts(
        objective=objective,
        limits=limits,
        fleet=_with_cold_start(fleet, state.newest),
        model=model,
        pods=seen,
        blind=blind(windows),
        observed=observed,
        queue_now_s=queue_now_s,
        now=now,
        straggler=straggler.found(pace, now),
    )
    uneven = imbalance.follow(state.imbalance, facts, state.demand.held)
    facts = replace(facts, imbalance=imbalance.found(uneven, facts))
    answer = decide_replicas(state.demand, facts)
    demand = answer.state
    diagnosed, diagnosis, asked = diagnose(state.diagnosis, facts, demand)
    state = replace(
        state,
        model=model,
        ticked_at=max(now, state.ticked_at),
        pods=pods,
        demand=demand,
        pace=pace,
        imbalance=uneven,
        diagnosis=diagnosed,
        binding=binding.settle(state.binding, seen),
        moments=moments,
        finished=finished,
        trend=trend.follow(state.trend, facts),
        relief=relief(state.relief, demand, facts, dt),
        kappa=_kappa(state.kappa, observed),
    )
    held = observed.itl_met is not False and bool(setpoints) and state.relief == 1.0
    state = replace(state, newest=_learned(state, objective, fleet, held))
    decision = Decision(
        setpoints=setpoints,
        replicas=answer.wanted,
        recommended_replicas=answer.recommended,
        replicas_reason=answer.reason,
        observed=observed,
        diagnosis=diagnosis,
        trail=(*trail, answer.verdict, *asked),
        binding=state.binding.named,
        prefill_budget=budget_use(
            objective, limits, [w.last for w in windows.values() if w.last is not None]
        ),
        stalled=stalled_engines(facts),
        moving=moving(facts),
        ailing=ailing(facts),
        restart=trend.found(state.trend, facts),
    )
    return state, decision


def _with_cold_start(fleet: Fleet, learned: Learned | None) -> Fleet:
    """The fleet with the cold start that was learned, where none is measured now."""
    if fleet.cold_start_s is not None or learned is None or learned.cold_start_s <= 0.0:
        return fleet
    return replace(fleet, cold_start_s=learned.cold_start_s)


def _pods(
    objective: Objective, limits: Limits, state: State, model: StepModel | None, windows: Windows, now: float
) -> tuple[dict[str, PodState], dict[str, Setpoint], list[PodFacts], list[Verdict]]:
    """Every pod by itself; they share the step model and, for a newcomer, what the others run with."""
    peers = [p for p in state.pods.values() if p.cap is not None]
    ctx = Context(objective, limits, model, state.relief, state.seed, peers, now)
    pods: dict[str, PodState] = {}
    setpoints: dict[str, Setpoint] = {}
    seen: list[PodFacts] = []
    trail: list[Verdict] = []
    for name, window in sorted(windows.items()):
        before = state.pods.get(name)
        if isinstance(window, Window):
            pod, setpoint, facts, asked = with_window(ctx, before, window)
            pods[name] = pod
            seen.append(facts)
            trail.extend(replace(v, evidence={"pod": name, **v.evidence}) for v in asked)
            if limits.tuning is TuningMode.RECOMMEND and (found := facts.recommended) is not None:
                trail.append(_told(facts, found))
        else:
            kept, setpoint = without_window(ctx, before, window)
            if kept is not None:
                pods[name] = kept
        if setpoint is not None:
            setpoints[name] = setpoint
    return pods, setpoints, seen, trail


def _told(facts: PodFacts, found: Setpoint) -> Verdict:
    evidence: dict[str, float | int | str] = {"pod": facts.name}
    evidence["cap"] = facts.cap if facts.cap is not None else "unknown"
    evidence["recommended"] = found.max_num_active_seqs or 0
    if found.max_num_scheduled_tokens is not None:
        evidence["recommended_budget"] = found.max_num_scheduled_tokens
    other = found.max_num_active_seqs != facts.cap
    if found.max_num_scheduled_tokens is not None:
        other |= any(
            e.kept_num_scheduled_tokens != found.max_num_scheduled_tokens for e in facts.window.last.engines
        )
    return Verdict("Recommend", other, f"the recommended {in_words(found)}", evidence)


def _moments(state: State, windows: Windows, now: float) -> tuple[Moment, ...]:
    """The fleet's windows of the last QUEUE_SEEN_S, this tick's included."""
    fleet = aggregate(windows)
    seconds = median([w.dt for w in usable(windows)]) if fleet.pods else 0.0
    kept = [m for m in state.moments if m.at > now - QUEUE_SEEN_S]
    return (*kept, Moment(now, fleet, seconds))


def _kappa(before: float, observed: Observed) -> float:
    """The statistic over the mean, smoothed: lets a new operator start near the right cap for a changed
    target.
    """
    if not observed.itl_s or not observed.itl_mean_s:
        return before
    ratio = min(8.0, max(0.5, observed.itl_s / observed.itl_mean_s))
    return before + KAPPA_WEIGHT * (ratio - before)


def _learned(state: State, objective: Objective, fleet: Fleet, held: bool) -> Learned | None:
    """What is worth keeping of this state; the last worth keeping where nothing is known now.

    The cap is kept with its target only while it is ours and the objective holds (`held`).
    """
    model, before = state.model, state.newest
    known = [p for p in state.pods.values() if p.context > 0.0]
    if model is None or not known:
        return before
    loads = [load_of(p.history) for p in known]
    caps = [p.cap for p in known if p.cap is not None]
    prompts = [p.kv.prompt for p in known if p.kv.prompt is not None]
    ratios = [kv.stop_ratio(p.kv) for p in known if p.kv.allowed > 0.0]
    outputs = [p.kv.output for p in known if p.kv.output is not None]
    target, quantile = objective.itl_s or 0.0, QUANTILES.get(objective.itl_statistic, 0.0)
    cap, per_request = 0.0, float(objective.of_requests)
    kappa = state.kappa
    if objective.of_requests:
        # Requests end long after their tokens: what each pod measured over them, and not the present ratio.
        kappa = _middle([p.kappa for p in known if p.kappa is not None]) or 1.0
    tail = _middle([p.tail for p in known if p.tail is not None and p.budget is not None])
    if held and caps:
        cap = float(median(caps))
    elif before is not None:
        if before.per_request != per_request:
            kappa, tail = before.kappa, before.tail
        cap, target, quantile = before.cap, before.target_s, before.quantile
        per_request = before.per_request
    return Learned(
        a_s=max(1e-9, model.a_s),
        b_s=model.b_s,
        g_s=model.g_s,
        d_s=model.d_s,
        c_s=model.c_s,
        noise=model.noise,
        kappa=kappa,
        context=median([p.context for p in known]),
        prefill=median([prefill for prefill, _ in loads]),
        mixed=median([mixed for _, mixed in loads]),
        prompt=_middle(prompts),
        output=_middle(outputs),
        sharing=median([p.kv.sharing for p in known]),
        trust=min(p.kv.trust for p in known),
        cap=cap,
        target_s=target,
        quantile=quantile,
        tail=tail,
        cold_start_s=fleet.cold_start_s or (before.cold_start_s if before is not None else 0.0),
        stop_ratio=_middle(ratios) or (before.stop_ratio if before is not None else 0.0),
        per_request=per_request,
    )


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else 0.0

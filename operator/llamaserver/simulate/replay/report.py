"""A replay for people and programs: text, and plain data for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from llamaserver.observe.distribution import Estimate
from llamaserver.simulate.outcome import Moment, Traced
from llamaserver.simulate.policies import LAW
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.replay.judged import Range
from llamaserver.simulate.replay.replay import TRUSTED, Replay, mean_lengths
from llamaserver.simulate.report.data import asked, figures, said
from llamaserver.simulate.report.table import columns, number

Json = dict[str, Any]
HEAD = (
    "",
    "missed",
    "ITL mean",
    "p50",
    "p95",
    "p99 ms",
    "tokens/s",
    "TTFT p50",
    "p95 s",
    "GPU-h",
    "replicas",
)
ROWS = ("the history", "the plant, as it was", "the plant, llamaserver")


def text(r: Replay) -> str:
    """The whole answer, for a terminal."""
    parts = (head(r), columns([HEAD, *rows(r)]), reading(r), trust(r), *decided(r), "")
    return "\n\n".join(p for p in parts if p) + "\n\nWhat this history cannot tell:\n" + bullets(r.limits)


def bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def head(r: Replay) -> str:
    """What was looked at."""
    prompt, output = mean_lengths(r.demand)
    return (
        f"{r.demand.name}, {moment(r.history.began)} to {moment(r.history.began + r.history.span_s)}, steps "
        f"of {r.history.step_s:g} s\n{len(r.demand.requests)} requests, {prompt:.0f} tokens in, {output:.0f} "
        f"out; {r.question.calibrated.name}; {said(r.question.objective)}"
    )


def moment(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def rows(r: Replay) -> list[tuple[str, ...]]:
    """In the order of ROWS, each with the columns of HEAD."""
    gpus = r.question.calibrated.profile.gpus
    was = r.was
    ours = (
        ROWS[0],
        _share(was.missed),
        number(1e3 * was.itl_mean_s, 1),
        *(_between(one) for one in was.itl),
        number(was.tokens_per_s, 0),
        *(_estimated(one) for one in was.ttft),
        number(was.replica_hours * gpus, 2),
        counted(r.serving),
    )
    return [ours, _run(ROWS[1], r.as_it_was), _run(ROWS[2], r.law)]


def _run(name: str, traced: Traced) -> tuple[str, ...]:
    o = traced.outcome
    return (
        name,
        _share((o.violated_window_share, o.violated_window_share)),
        number(1e3 * traced.itl_mean_s, 1),
        *(number(1e3 * value, 1) for value in (o.itl_p50_s, o.itl_p95_s, o.itl_p99_s)),
        number(o.tokens_per_s, 0),
        number(o.ttft_p50_s, 1),
        number(o.ttft_p95_s, 1),
        number(o.gpu_hours, 2),
        counted([m.replicas for m in traced.moments]),
    )


def _share(share: Range) -> str:
    low, high = (f"{100 * s:.1f}" for s in share)
    return "-" if not math.isfinite(share[0]) else f"{low} %" if low == high else f"{low}-{high} %"


def _between(range_: Range) -> str:
    low, high = (1e3 * s for s in range_)
    if math.isnan(low):
        return "-"
    return f">{low:g}" if math.isinf(high) else f"{low:g}-{high:g}"


def _estimated(found: Estimate | None) -> str:
    if found is None:
        return "-"
    return f"{found.relation.removesuffix('=')}{found.value_s:.1f}"


def counted(replicas: Sequence[int]) -> str:
    low, high = min(replicas), max(replicas)
    return str(low) if low == high else f"{low}-{high}"


def reading(r: Replay) -> str:
    return (
        f"missed: share of the windows of {r.window_s:g} s in which the objective was; of the history "
        "between the two that its buckets allow, as are its latencies. ITL: between two tokens. TTFT: to the "
        "first."
    )


def trust(r: Replay) -> str:
    """How well the plant makes what was."""
    mean, p95, rate = (100 * r.errors[name] for name in ("itl_mean", "itl_p95", "tokens_per_s"))
    told = (
        f"The plant against the history: ITL mean {mean:+.1f} %, p95 {p95:+.1f} % out of its bucket, "
        f"tokens/s {rate:+.1f} %."
    )
    if r.trusted:
        return f"{told} That is within {100 * TRUSTED:.0f} %."
    return (
        f"{told} That is more than {100 * TRUSTED:.0f} %: DO NOT TRUST the comparison. Give the plant that "
        "these engines are (--profile), or choose a time without gaps and restarts."
    )


def decided(r: Replay) -> list[str]:
    """What the law would have done, and what of it."""
    law, then = r.law.outcome, r.as_it_was.outcome
    settings = (
        f"The law would have set caps of {_course(r.law.moments, 'cap')}, prefill budgets of "
        f"{_course(r.law.moments, 'budget')} tokens and {counted([m.replicas for m in r.law.moments])} "
        f"replicas (of {r.least} to {r.most}), with {law.cap_changes:.0f} changes of caps or budgets and "
        f"{law.replica_changes:.0f} of replicas."
    )
    saved = then.gpu_hours - law.gpu_hours
    share = 100 * saved / then.gpu_hours
    cost = (
        f"{abs(saved):.2f} GPU-hours {'saved' if saved >= 0 else 'more'} ({abs(share):.0f} %)"
        if abs(share) >= 0.5
        else "as many GPU-hours"
    )
    missed = (
        ""
        if r.question.objective.itl_s is None
        else f"the objective missed in {_share((law.violated_window_share,) * 2)} of the windows instead of "
        f"{_share((then.violated_window_share,) * 2)}, "
    )
    return [
        settings,
        f"On this plant that is {missed}{cost}, and a first token after {number(law.ttft_p95_s, 1)} s "
        f"instead of {number(then.ttft_p95_s, 1)} s (p95).",
    ]


def _course(moments: Sequence[Moment], name: str) -> str:
    values = [getattr(m, name) for m in moments]
    return f"{min(values):.0f} to {max(values):.0f} (median {median(values):.0f})"


def document(r: Replay) -> Json:
    """Everything that was found. Times in seconds; None where it is not known."""
    profile = r.question.calibrated.profile
    was = r.was
    return {
        "history": {
            "name": r.demand.name,
            "began": moment(r.history.began),
            "span_s": r.history.span_s,
            "step_s": r.history.step_s,
            "replicas": {"names": [one.name for one in r.history.replicas], "course": list(r.serving)},
            "gaps": len(r.history.gaps),
            "restarts": r.history.restarts,
            "violated_window_share": _known(was.missed),
            "itl_mean_s": _finite(was.itl_mean_s),
            **{f"itl_{p}_s": _known(v) for p, v in zip(("p50", "p95", "p99"), was.itl, strict=True)},
            "tokens_per_s": was.tokens_per_s,
            "gpu_hours": was.replica_hours * profile.gpus,
            "preemptions": was.preemptions,
            "requests": was.arrivals,
        },
        "objective": asked(r.question.objective),
        "profile": {
            "name": r.question.calibrated.name,
            "source": r.question.calibrated.source,
            "assumed": list(r.question.assumed),
            **{name: getattr(profile, name) for name in Profile.__dataclass_fields__},
        },
        "demand": {"requests": len(r.demand.requests), "mean_lengths": list(mean_lengths(r.demand))},
        "replicas": {"min": r.least, "max": r.most, "cold_start_s": r.question.cold_start_s},
        "plant": {"errors": r.errors, "trusted": r.trusted},
        "as_it_was": _traced(r.as_it_was),
        LAW: _traced(r.law),
        "limits": list(r.limits),
    }


def _traced(t: Traced) -> Json:
    every = max(1, len(t.moments) // 2000)
    return {
        "itl_mean_s": _finite(t.itl_mean_s),
        **figures(t.outcome),
        "course": [
            {"at_s": m.at, "cap": m.cap, "budget": m.budget, "replicas": m.replicas}
            for m in t.moments[::every]
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _known(range_: Range) -> list[float | None]:
    return [_finite(value) for value in range_]

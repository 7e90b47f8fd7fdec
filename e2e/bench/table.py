"""The result as a table, for documents. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
FIXED = ("default", "best_cap", "best_pair")
DISTURBED_CORES = 0.1
"""More than this beside the bench, in the median of all repeats, and its figures cannot be trusted."""
NOT_POLICIES = frozenset(
    {
        "says",
        "complete",
        "target_ms",
        "objective",
        "streams",
        "streams_cut",
        "load_average_before",
        "others_cores",
        "sweep",
    }
)
"""What stands in a scenario beside its policies."""


def policies(scenario: Json) -> list[str]:
    """The policies of a scenario in the order of the file, with those that are null."""
    return [name for name in scenario if name not in NOT_POLICIES]


def setting(name: str, policy: Json) -> str:
    """Cap and budget of a policy, in a few words."""
    if name == "default":
        return "as started"
    cap, budget = policy["cap"], policy["budget"]
    if cap is None:
        return "unknown"
    start = policy.get("budget_at_start", False)
    return f"cap {cap:g}" if start or budget is None else f"cap {cap:g}, budget {budget:g}"


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or a dash for what is not known."""
    return "–" if value is None else f"{value:,.{digits}f}"


def rows(scenario: Json) -> Iterator[tuple[str, ...]]:
    """A row a policy: name, setting, p50 / p95 / p99, tokens/s, TTFT p50 / p95, violated, holds."""
    for name in policies(scenario):
        policy = scenario[name]
        if policy is None:
            missing = "none holds" if name in FIXED and scenario["sweep"] else "not measured"
            yield (name, missing, *(("–",) * 5))
            continue
        itl = " / ".join(number(policy[f"itl_{p}_ms"]) for p in ("p50", "p95", "p99"))
        ttft = " / ".join(number(policy[f"ttft_{p}_s"]) for p in ("p50", "p95"))
        yield (
            name,
            setting(name, policy),
            itl,
            number(policy["tokens_per_s"], 0),
            ttft,
            violated(policy),
            held(policy),
        )


def violated(policy: Json) -> str:
    """The share of windows that missed the objective, and that of the changes that were answered late."""
    change = policy["violated_at_change"]
    at_change = "" if change is None else f", {100 * change:.0f} % at the change"
    return f"{100 * policy['violated_window_share']:.0f} %{at_change}"


def held(policy: Json) -> str:
    """Whether the objective was held; if not in every part, how far the worst of them is off."""
    if policy["holds"]:
        return "yes"
    if len(policy["parts"]) < 2:
        return "no"
    worst = max(policy["parts"], key=lambda part: part["itl_tail_ms"])
    return f"no: {worst['itl_tail_ms']:.1f} ms in {worst['name']}"


HEAD = (
    "policy",
    "setting",
    "ITL p50 / p95 / p99, ms",
    "tokens/s",
    "TTFT p50 / p95, s",
    "windows violated",
    "held",
)


def objective(scenario: Json) -> str:
    """What the scenario is held to, in a few words."""
    target = scenario["target_ms"]
    return "no objective yet" if target is None else f"{scenario['objective']['statistic']} ≤ {target:g} ms"


def warnings(result: Json) -> list[str]:
    """Why the figures are less than they look: what is missing, and what else the machine was busy with."""
    found = [] if result["complete"] else [f"Incomplete: {result['incomplete']}."]
    disturbed = {
        name: scenario["others_cores"]
        for name, scenario in result["scenarios"].items()
        if (scenario["others_cores"] or 0.0) > DISTURBED_CORES
    }
    if disturbed:
        told = ", ".join(f"{cores:.2f} cores during {name}" for name, cores in disturbed.items())
        found.append(f"Disturbed: something else on the machine used {told}. Latencies are of both together.")
    return found


def markdown(result: Json) -> str:
    """All scenarios, one under the other."""
    lines = []
    for warning in warnings(result):
        lines += [f"**{warning}**", ""]
    head = ("scenario", *HEAD)
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, scenario in result["scenarios"].items():
        first = f"`{name}`, {objective(scenario)}"
        for row in rows(scenario):
            lines.append(f"| {first} | {' | '.join(row)} |")
            first = ""
    machine, versions = result["machine"], result["versions"]
    lines += [
        "",
        f"{result['started']}, {machine['cores']} × {machine['cpu']}, {machine['memory_gib']:.0f} GiB, "
        f"{machine['dtype']}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + f"; medians of {result['asked']['repeats']} repeats, windows of "
        f"{result['asked']['window_s']:g} s.",
    ]
    return "\n".join(lines)

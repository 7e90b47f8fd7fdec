"""A comparison as a table of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from llamaserver.simulate.compare import Result, Scenario
from llamaserver.simulate.outcome import Outcome
from llamaserver.simulate.report.data import setting

HEAD = (
    "policy",
    "missed",
    "ITL p50",
    "p95",
    "p99 ms",
    "tokens/s",
    "TTFT p50",
    "p95 s",
    "GPU-h",
    "changes",
)


def cells(name: str, o: Outcome) -> tuple[str, ...]:
    """One row, in the order of HEAD."""
    return (
        name,
        f"{100 * o.violated_window_share:.1f} %" if math.isfinite(o.violated_window_share) else "-",
        *(number(1e3 * value, 1) for value in (o.itl_p50_s, o.itl_p95_s, o.itl_p99_s)),
        number(o.tokens_per_s, 0),
        number(o.ttft_p50_s, 1),
        number(o.ttft_p95_s, 1),
        number(o.gpu_hours, 2),
        number(o.cap_changes, 0),
    )


def title(result: Result) -> str:
    """The policy's name, with what was found in hindsight."""
    found = setting(result)
    return f"{result.policy.name} ({found})" if found else result.policy.name


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A row a policy: means over the seeds."""
    return [cells(title(r), r.mean) for r in results]


def table(results: Sequence[Result]) -> str:
    """The rows under their head, in columns."""
    return columns([HEAD, *rows(results)])


def columns(body: Sequence[tuple[str, ...]]) -> str:
    """Rows of equally many cells, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in body) for i in range(len(body[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in body
    )


def refusals(outcomes: Iterable[Outcome], longest: int) -> str:
    """What to say below a table where requests were refused; empty where none was. `longest` is the length
    that the engines serve.
    """
    counts = [o.refused for o in outcomes]
    if not any(counts):
        return ""
    least, most = (f"{count:.0f}" for count in (min(counts), max(counts)))
    return (
        f"Refused: {least if least == most else f'{least} to {most}'} requests, since vLLM takes none that "
        f"may get longer than the model allows, here {longest} tokens (max_model_len of the profile, or what "
        "its cache holds). They are in no figure."
    )


def hits(scenario: Scenario, results: Iterable[Result]) -> str:
    """What to say below a table where there was a prefix cache; empty where there was none."""
    if not scenario.prefix_cache:
        return ""
    had = ", ".join(f"{100 * r.mean.prefix_hit_share:.1f} % ({r.policy.name})" for r in results)
    return f"Of the prompt tokens the prefix cache had {had}."


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"

"""What a history cannot tell, in words, with its own numbers."""

from __future__ import annotations

import math

from llamaserver.control import Objective
from llamaserver.control.objective import QUANTILES
from llamaserver.simulate.replay.history import History
from llamaserver.simulate.replay.judged import Was
from llamaserver.simulate.replay.lengths import together


def limits(history: History, was: Was, objective: Objective) -> list[str]:
    """Sentences for who reads the comparison; what does not apply is left out."""
    told = (
        _scrapes(history),
        _edges(was, objective),
        _requests(was, objective),
        _lengths(history),
        _gaps(history),
        _restarts(history),
        _rejected(history),
        "Clients that wait for an answer ask sooner when it comes sooner; here they ask when they asked.",
        _cached(history),
        _settings(history),
        _absent(history),
    )
    return [sentence for sentence in told if sentence]


def _scrapes(history: History) -> str:
    return (
        f"Scrapes are {history.step_s:g} s apart. Requests are put at random times between two of them, so "
        "bursts that are shorter are lost; those that were in hand at the first scrape come in the first "
        "interval."
    )


def _edges(was: Was, objective: Objective) -> str:
    target = objective.itl_s
    if target is None or objective.itl_statistic not in QUANTILES:
        return ""
    unsure = sum(s.missed is None for s in was.steps)
    if not unsure:
        return ""
    around = [s.statistic for s in was.steps if s.missed is None]
    low, high = min(a for a, _ in around), max(b for _, b in around)
    return (
        f"Latencies are known by bucket, and the target of {1e3 * target:g} ms is no bucket edge: in "
        f"{unsure} of {len(was.steps)} steps the {objective.itl_named} was between {_ms(low)} and "
        f"{_ms(high)}, which is neither held nor missed."
    )


def _requests(was: Was, objective: Objective) -> str:
    if not objective.of_requests or was.steps:
        return ""
    return (
        "Whether the history held an objective of requests is not known: too few of them finished, or "
        "vllm:request_time_per_output_token_seconds is not there, which vLLM has from 0.11 on."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:g} ms" if math.isfinite(seconds) else "no end"


def _lengths(history: History) -> str:
    if together([i.outputs for i in history.intervals]) is None:
        return (
            "Of lengths only means are known (vllm:request_prompt_tokens and vllm:request_generation_tokens "
            "are not there): they are drawn from an exponential distribution."
        )
    return (
        "Lengths are those of requests that finished at about the same time, known by bucket and for prompts "
        "and outputs apart: whether long prompts had long outputs is not known. Their means are exact."
    )


def _gaps(history: History) -> str:
    gaps = history.gaps
    if not gaps:
        return ""
    return (
        f"{len(gaps)} gaps of {sum(g.seconds for g in gaps):.0f} s together, over all replicas: what came in "
        "each is known as a sum only, and is spread evenly."
    )


def _restarts(history: History) -> str:
    if not history.restarts:
        return ""
    return (
        f"{history.restarts} restarts: what was added between the last scrape and a restart is not known, "
        "and requests that ended with an engine are not asked again."
    )


def _rejected(history: History) -> str:
    rejected = sum(i.rejected or 0.0 for i in history.intervals)
    counted = f" vLLM itself refused {rejected:.0f}." if rejected else ""
    return (
        "Requests that no engine took (refused by a gateway or a full queue, or not sent because all was "
        f"slow) are not in the history, so demand is what was served.{counted}"
    )


def _cached(history: History) -> str:
    cached = sum(i.cached_tokens or 0.0 for i in history.intervals)
    prompts = sum(i.prompt_tokens or 0.0 for i in history.intervals)
    if cached < 0.01 * prompts or prompts <= 0.0:
        return ""
    return (
        f"{100 * cached / prompts:.0f} % of the prompt tokens came from the prefix cache; the plant computes "
        "every prompt whole, and is slower for it."
    )


def _settings(history: History) -> str:
    if any(r.cap_moved for r in history.replicas):
        return "The cap was moved in this history; as it was is played with its median."
    if all(r.cap is None for r in history.replicas):
        return "vLLM does not tell max-num-seqs and its token budget: as it was is played with the plant's."
    return ""


def _absent(history: History) -> str:
    if not history.absent:
        return ""
    return f"Not recorded: {', '.join(f'vllm:{name}' for name in history.absent)}."

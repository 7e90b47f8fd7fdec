"""The loads: what is asked of the engine, with which flags it serves, and what a repeat consists of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bench.objective import BETWEEN, Rule
from harness.traffic import Group, Mix

STREAMS = 40
"""A quarter more than the engine's ceiling: somebody always waits, so a cap always binds."""


@dataclass(frozen=True)
class Part:
    """A stretch of a repeat: a mix, time to settle in it (a share of the run's own), windows that count."""

    mix: int = 0
    settle: float = 1.0
    windows: int = 1


@dataclass(frozen=True)
class Scenario:
    """One load on one server."""

    name: str
    says: str
    """In one line, for people."""
    mixes: tuple[Mix, ...]
    parts: tuple[Part, ...] = (Part(),)
    flags: tuple[str, ...] = ()
    objective: Rule = BETWEEN

    def slot_s(self, settle_s: float, window_s: float) -> float:
        """Seconds that one repeat of one policy takes."""
        return sum(part.settle * settle_s + part.windows * window_s for part in self.parts)


def _all(prompt: tuple[int, int], output: tuple[int, int], prefix: int = 0) -> Mix:
    return (Group(STREAMS, prompt, output, prefix),)


CHAT = _all((32, 256), (60, 300))
PREFILL_HEAVY = _all((300, 700), (30, 100))
BURSTING = 14
"""Streams that send together; the others leave them room below the ceiling, so that a burst is one."""

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("chat_mix", "chat: prompts of 32 to 256 tokens, answers of 60 to 300", (CHAT,)),
        Scenario(
            "long_prompt_bursts",
            f"chat on {STREAMS - BURSTING} streams; every 6 s the other {BURSTING}, as far as they are free, "
            "send prompts of 300 to 700 tokens at once, answers of 30 to 100",
            (
                (
                    Group(STREAMS - BURSTING, (32, 256), (60, 300)),
                    Group(BURSTING, (300, 700), (30, 100), every_s=6.0),
                ),
            ),
        ),
        Scenario("prefill_heavy", "prompts of 300 to 700 tokens, answers of 30 to 100", (PREFILL_HEAVY,)),
        Scenario(
            "decode_only",
            "prompts of 16 tokens, answers of 300; the objective is above what the default does: nothing has to "
            "give",
            (_all((16, 16), (300, 300)),),
            objective=Rule("p95", 1.1),
        ),
        Scenario(
            "shared_prefixes",
            "prompts that share their first 256 tokens, which the prefix cache holds, and 16 to 128 of their "
            "own; answers of 60 to 300",
            (_all((16, 128), (60, 300), prefix=256),),
            flags=("--enable-prefix-caching",),
        ),
        Scenario(
            "mix_change",
            "chat, and from one moment to the next prefill-heavy; the change itself counts",
            (CHAT, PREFILL_HEAVY),
            parts=(Part(0), Part(1, settle=0.0)),
        ),
        Scenario(
            "growing_contexts",
            "prompts of 32 to 64 tokens, answers of 300 to 900: contexts grow to thirty times the prompt",
            (_all((32, 64), (300, 900)),),
            parts=(Part(settle=4.0),),
        ),
        Scenario(
            "kv_bound",
            "a KV cache of 6,144 tokens, prompts of 64 to 256 and answers of 200 to 500: about 16 fit",
            (_all((64, 256), (200, 500)),),
            parts=(Part(settle=3.0),),
            flags=("--block-size", "32", "--num-gpu-blocks-override", "192"),
        ),
    )
}

"""The loads: what is asked of the engine, with which flags it serves, and what a repeat consists of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.objective import BETWEEN, Rule
from harness.traffic import Group, Mix

STREAMS = 40
"""A quarter more than the engine's ceiling: somebody always waits, so a cap always binds."""


@dataclass(frozen=True)
class Part:
    """A stretch of a repeat: a mix, time to settle in it (a share of the run's own), windows that count.

    A setting has to hold the objective in every part by itself.
    """

    mix: int | None = 0
    """None for the load that there is, which goes on."""
    settle: float = 1.0
    windows: int = 1
    change_s: float = 0.0
    """Seconds after the settling that count for tokens alone; whether the objective was missed in them is
    told apart. For a part that is about a change itself, which every policy takes some time to answer.
    """
    name: str = ""


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
    full: tuple[Part, ...] = ()
    """Of a load with groups that have a share: what the objective is made in, and what counts as full."""
    extra: bool = False
    """Measured only when asked for."""

    def slot_s(self, settle_s: float, window_s: float) -> float:
        """Seconds that one repeat of one policy takes."""
        return seconds(self.parts, settle_s, window_s)

    @property
    def windows(self) -> int:
        """Windows of a repeat."""
        return sum(part.windows for part in self.parts)

    @property
    def sweeps(self) -> bool:
        """Whether there is a fixed setting to be found that is better than the default."""
        return not self.objective.above_default and not self.full


def seconds(parts: Sequence[Part], settle_s: float, window_s: float) -> float:
    """How long these take, one after the other."""
    return sum(part.settle * settle_s + part.change_s + part.windows * window_s for part in parts)


def _all(prompt: tuple[int, int], output: tuple[int, int], prefix: int = 0) -> Mix:
    return (Group(STREAMS, prompt, output, prefix),)


CHAT = _all((32, 256), (60, 300))
PREFILL_HEAVY = _all((300, 700), (30, 100))
BURSTING = 14
"""Streams that send together; the others leave them room below the ceiling, so that a burst is one."""

LONG = 6144
"""Tokens of a long context: 48 blocks of the CPU backend's usual size. A decode behind it costs about four
times what one at the beginning of its context costs.
"""
LONG_FLAGS = (
    "--enable-prefix-caching",
    "--max-model-len",
    "6656",
    # The model's own length is 2,048; its positions are rotations, which need no weights.
    "--hf-overrides",
    '{"max_position_embeddings": 8192, "model_max_length": 8192}',
)
DOCUMENTS = _all((16, 64), (60, 300), prefix=LONG)
CHANGE_S = 15.0
"""What a policy has to answer a change."""
GROWS_PER_S = 150.0
QUARTERS = tuple(f"the {which} quarter" for which in ("first", "second", "third", "last"))
"""Of the time in which contexts grow."""

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
            "prompts of 16 tokens, answers of 300; the objective is above what the default does: nothing has "
            "to give",
            (_all((16, 16), (300, 300)),),
            objective=Rule("tail", 1.1),
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
            f"questions of 16 to 64 tokens about a document of {LONG:,}, which the prefix cache holds; then, "
            "from one moment to the next, chat, whose usual latency the objective is made from",
            (DOCUMENTS, CHAT),
            parts=(
                Part(0, settle=3.0, name="documents"),
                Part(1, settle=0.0, windows=2, change_s=CHANGE_S, name="chat"),
            ),
            flags=LONG_FLAGS,
            objective=Rule("p50", 1.2, part="chat"),
        ),
        Scenario(
            "growing_contexts",
            "prompts of 16 to 64 tokens after a text that the prefix cache holds and that grows by "
            f"{GROWS_PER_S:g} tokens a second, to {LONG:,}; answers of 60 to 150",
            (
                _all((16, 64), (60, 150), prefix=256),
                (Group(STREAMS, (16, 64), (60, 150), 256, prefix_per_s=GROWS_PER_S, prefix_most=LONG),),
            ),
            parts=(
                Part(0, settle=5.0, windows=0),
                *(Part(None if number else 1, settle=0.0, name=name) for number, name in enumerate(QUARTERS)),
            ),
            flags=(*LONG_FLAGS, "--block-size", "32"),
            objective=Rule("p50", 1.15, part=QUARTERS[0]),
        ),
        Scenario(
            "kv_bound",
            "a KV cache of 6,144 tokens, prompts of 64 to 256 and answers of 200 to 500: about 16 fit",
            (_all((64, 256), (200, 500)),),
            parts=(Part(settle=3.0),),
            flags=("--block-size", "32", "--num-gpu-blocks-override", "192"),
        ),
        Scenario(
            "prefill_change",
            "chat, and from one moment to the next prefill-heavy; the change itself counts",
            (CHAT, PREFILL_HEAVY),
            parts=(Part(0, name="chat"), Part(1, settle=0.0, name="prefill-heavy")),
            extra=True,
        ),
        Scenario(
            "long_answers",
            "prompts of 32 to 64 tokens, answers of 300 to 900: contexts grow to thirty times the prompt",
            (_all((32, 64), (300, 900)),),
            parts=(Part(settle=4.0),),
            extra=True,
        ),
        Scenario(
            "open_chat",
            "chat whose requests come at random, with 0.7 times the rate at which the default answers when "
            f"{STREAMS} streams keep it full; the objective is the full load's",
            (CHAT, (Group(STREAMS, (32, 256), (60, 300), share=0.7),)),
            parts=(Part(1, settle=4.0, windows=3),),
            full=(Part(),),
            extra=True,
        ),
    )
}
USUAL = tuple(scenario for scenario in SCENARIOS.values() if not scenario.extra)
"""What is measured when nothing else is asked for."""

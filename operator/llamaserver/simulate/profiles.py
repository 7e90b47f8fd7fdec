"""What one replica is: a model on a machine, as coefficients of the duration of a step.

    tau = a + b B + g K + d P + c [P > 0]

B decoding sequences, K their resident KV tokens, P prefill tokens of the step; see docs/control.md. With a
knee, as GPUs have it, the weights are read while the tokens are computed and the longer of the two counts:

    tau = max(a + b (B + P), d (B + P)) + g K + c [P > 0]

That is not the model which the law fits: what it does about the difference is part of what is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from llamaserver.simulate.errors import SimulationError


@dataclass(frozen=True)
class Profile:
    """A machine and a model: seconds per step, sequence, resident token, prefill token, prefill-carrying
    step; then what the engine is started with.
    """

    a: float
    b: float
    g: float
    d: float
    c: float
    kv_tokens: int
    """Tokens that the KV cache holds."""
    max_num_seqs: int
    budget: int = 2048
    """`--max-num-batched-tokens`."""
    gpus: int = 1
    """Accelerators of one replica; what GPU-hours count."""
    knee: bool = False
    max_model_len: int = 1 << 17
    """Tokens of the longest sequence that the model allows, prompt and answer. Unless told, Llama 3's."""

    @property
    def longest(self) -> int:
        """The length that vLLM serves. It does not start where the cache holds no sequence of the model's
        length; such an engine is taken to be started with what fits, as `--max-model-len auto` does.
        """
        return min(self.max_model_len, self.kv_tokens)

    def takes(self, prompt: int, most: int) -> bool:
        """Whether vLLM takes a request that may generate `most` tokens. It refuses what may get too long."""
        return prompt + most <= self.longest

    def step_s(self, decoding: int, resident: int, prefill: int) -> float:
        """The duration of a step without noise."""
        tokens = decoding + prefill
        carrying = self.c if prefill else 0.0
        if self.knee:
            return max(self.a + self.b * tokens, self.d * tokens) + self.g * resident + carrying
        return self.a + self.b * decoding + self.g * resident + self.d * prefill + carrying

    def ceiling_tokens_per_s(self, prompt: float, output: float) -> float:
        """About what a replica makes with every place taken, from mean lengths in tokens."""
        context = prompt + output / 2
        batch = min(self.max_num_seqs, int(self.kv_tokens / context))
        return batch / self.step_s(batch, round(batch * context), round(batch * prompt / output))


CPU_24M = Profile(6.4e-3, 0.45e-3, 0.6e-6, 0.17e-3, 2e-3, 60_000, max_num_seqs=32, max_model_len=2048)
"""A 24 M Llama on two cores: 7.3 ms a step at one sequence, 16 at 16, 25 at 32."""
H100_8B = Profile(6.5e-3, 12e-6, 56e-9, 25e-6, 1e-3, kv_tokens=467_000, max_num_seqs=256, budget=8192)
"""Straight, for the figures of docs/control.md."""
H100_8B_KNEE = replace(H100_8B, d=23e-6, knee=True)
A100_8B = Profile(9.7e-3, 24e-6, 92e-9, 69e-6, 1e-3, kv_tokens=467_000, max_num_seqs=256, knee=True)
H100_70B_TP4 = Profile(14.3e-3, 15e-6, 35e-9, 53e-6, 1e-3, 2_000_000, 256, budget=8192, gpus=4, knee=True)
A100_70B_TP4 = Profile(24.9e-3, 32e-6, 57e-9, 162e-6, 1e-3, 2_000_000, 256, gpus=4, knee=True)


STOCK_IMAGE = "vllm/vllm-openai:v0.32.0"
NO_MODEL = "hf://org/model"
"""In the place of a model's address where the figures alone were given."""


@dataclass(frozen=True)
class Calibrated:
    """A profile with its name and where its numbers come from."""

    name: str
    profile: Profile
    model: str
    source: str
    prompt: float = 1000.0
    """Mean tokens of a prompt, where nobody says more; likewise of an output."""
    output: float = 200.0
    resource: str = "nvidia.com/gpu"
    """The extended resource of its accelerators; empty without any."""
    image: str = STOCK_IMAGE
    extra_args: tuple[str, ...] = ()
    """Arguments without which the image does not start on this machine."""
    gated: bool = False
    """Whether the hub gives the model only to those whom its owner has admitted."""


_VIDUR = (
    "a, b, d: non-attention time by tokens in the batch, from Vidur's profiling data (MIT, Microsoft); g: KV "
    "bytes per token over 70 % of the memory bandwidth; KV tokens: BLIS's total_kv_blocks (Apache-2.0) x 16; "
    "c: assumed"
)
_LLAMA_8B = "hf://meta-llama/Llama-3.1-8B-Instruct"
_LLAMA_70B = "hf://meta-llama/Llama-3.3-70B-Instruct"
PROFILES = {
    p.name: p
    for p in (
        Calibrated(
            "H100-8B",
            H100_8B_KNEE,
            _LLAMA_8B,
            "a, b, d: between Vidur's profiling data (MIT, Microsoft) of a 7B model and what the Workload "
            "Variant Autoscaler publishes of Llama-3.1-8B (7.0 ms at batch 1, 8.7 at 64); g: KV bytes per "
            "token over 70 % of the memory bandwidth; KV tokens: BLIS's total_kv_blocks (Apache-2.0) x 16; "
            "c: assumed",
            gated=True,
        ),
        Calibrated("A100-8B", A100_8B, _LLAMA_8B, _VIDUR, gated=True),
        Calibrated("H100-70B-TP4", H100_70B_TP4, _LLAMA_70B, _VIDUR, gated=True),
        Calibrated("A100-70B-TP4", A100_70B_TP4, _LLAMA_70B, _VIDUR, gated=True),
        Calibrated(
            "CPU",
            CPU_24M,
            "file:///models/tiny",
            "fitted to vLLM 0.32 with a random 24 M Llama on two cores",
            prompt=120.0,
            output=180.0,
            resource="",
            image="llamaserver/engine-cpu",
            extra_args=("--enforce-eager",),
        ),
    )
}


def slower(p: Profile, factor: float) -> Profile:
    """The same machine with every step `factor` times as long."""
    return replace(p, a=factor * p.a, b=factor * p.b, g=factor * p.g, d=factor * p.d, c=factor * p.c)


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIMES = ("a", "b", "g", "d", "c")
_NEEDED = ("a", "b", "g", "d", "kv_tokens")


def parse_profile(text: str) -> Calibrated:
    """A profile by name, or of one's own: `a=7ms,b=14us,g=50ns,d=25us,kv_tokens=400000`.

    Times have a unit (ns, us, ms, s); c, max_num_seqs (256), budget (2048), gpus (1), knee (0, or 1 for
    a machine that has one) and max_model_len (131072, or what the cache holds) may be left out. A name in
    front is where the rest is taken from: `H100-8B,max_num_seqs=512`. Raises SimulationError.
    """
    names = {name.lower(): p for name, p in PROFILES.items()}
    head, *rest = (part.strip() for part in text.split(","))
    if "=" in head:
        given = assignments([head, *rest])
        if missing := [name for name in _NEEDED if name not in given]:
            raise SimulationError(
                f"profile {text!r} says nothing of {', '.join(missing)}; give all of {', '.join(_NEEDED)}"
            )
        values: dict[str, float] = {"c": 0.0, "max_num_seqs": 256, **given}
        made = built(values, given)
        return Calibrated(text, made, NO_MODEL, "given on the command line")
    if head.lower() not in names:
        raise SimulationError(
            f"there is no profile {head!r}; there are {', '.join(PROFILES)}, or give your own as "
            "a=7ms,b=14us,g=50ns,d=25us,kv_tokens=400000"
        )
    found = names[head.lower()]
    if not rest:
        return found
    given = assignments(rest)
    values = {f.name: getattr(found.profile, f.name) for f in fields(Profile)} | given
    made = built(values, given)
    return replace(found, name=text, profile=made, source=f"{found.source}; changed by hand")


def assignments(parts: list[str]) -> dict[str, float]:
    """Figures of a profile by name, from `name=value` each. Raises SimulationError."""
    known = {f.name for f in fields(Profile)}
    given: dict[str, float] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in known:
            raise SimulationError(f"a profile has no {name!r}; it has {', '.join(sorted(known))}")
        given[name] = _value(name, value)
    return given


def _value(name: str, text: str) -> float:
    """A number of the profile: seconds, 0 or 1, or a count from 1 up."""
    seconds, switch = name in _TIMES, name == "knee"
    digits = text.rstrip("nuµms")
    unit = text[len(digits) :]
    try:
        number = float(digits) * (_UNITS[unit] if seconds else 1.0)
    except (ValueError, KeyError):
        number = math.nan
    if not seconds and unit:
        number = math.nan
    if seconds:
        wanted, good = (
            "a time with its unit, such as 12us",
            0.0 <= number < 1e9 and (number > 0.0 or name != "a"),
        )
    elif switch:
        wanted, good = "0 or 1", number in (0.0, 1.0)
    else:
        wanted, good = "a whole number from 1 up", 1.0 <= number < 1e9 and number.is_integer()
    if not good:
        raise SimulationError(f"{name}={text} of the profile cannot be; write {wanted}")
    return number


def built(values: Mapping[str, float], given: Mapping[str, float]) -> Profile:
    """A profile of `values`, of which `given` were told by hand. Raises SimulationError."""
    made = Profile(
        a=values["a"],
        b=values["b"],
        g=values["g"],
        d=values["d"],
        c=values["c"],
        kv_tokens=int(values["kv_tokens"]),
        max_num_seqs=int(values["max_num_seqs"]),
        budget=int(values.get("budget", 2048)),
        gpus=int(values.get("gpus", 1)),
        knee=bool(values.get("knee", 0)),
        max_model_len=int(values.get("max_model_len", Profile.max_model_len)),
    )
    if "max_model_len" in given and made.max_model_len > made.kv_tokens:
        raise SimulationError(
            f"a sequence of max_model_len {made.max_model_len} tokens does not fit a cache of "
            f"{made.kv_tokens}, and vLLM does not start: lower max_model_len or raise kv_tokens"
        )
    if made.budget < made.max_num_seqs:
        raise SimulationError(
            f"the budget of {made.budget} tokens is less than max_num_seqs {made.max_num_seqs}; vLLM starts "
            "with a token for each sequence at least: raise budget or lower max_num_seqs"
        )
    return made

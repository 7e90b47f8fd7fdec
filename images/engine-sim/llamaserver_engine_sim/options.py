"""The command line: `vllm serve`'s, as far as it matters here, and a few flags of the simulator's own.

Whatever else `vllm serve` takes is accepted and named in a warning, so that an argument list made for vLLM
works as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.profiles import PROFILES, Profile, parse_profile, slower
from llamaserver_engine_sim import VLLM, __version__

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
AUTO = -1
"""A length that is what fits."""


@dataclass(frozen=True)
class Options:
    """What one server is started with. Times in seconds."""

    served: tuple[str, ...]
    root: str
    """The model as it was named on the command line."""
    profile: Profile
    mean_output: float
    """Tokens of an answer whose client does not say how long it is to be."""
    host: str
    port: int
    api_keys: tuple[str, ...]
    certificate: str | None
    """File of the chain that is shown, which makes it HTTPS."""
    key: str | None
    """File of its key; None where the chain's has it."""
    seed: int
    startup_s: float
    drain_s: float | None
    """None is as long as it takes."""
    tuner: bool
    """False for an image in which the tuner does not load."""
    ignored: tuple[str, ...]
    """Arguments that vLLM may know and the simulator does not."""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read a command line. Ends the process with a usage message, as argparse does, where it is wrong."""
    parser = _parser()
    # vLLM takes an underscore for a hyphen in names of flags.
    given = [re.sub(r"^--[^=]+", lambda found: found[0].replace("_", "-"), word) for word in arguments]
    known, unknown = parser.parse_known_args(given)
    if known.ssl_keyfile and not known.ssl_certfile:
        parser.error("--ssl-keyfile is of no use without --ssl-certfile")
    model = known.model_tag or known.model
    try:
        calibrated = parse_profile(known.profile)
        profile = _sized(calibrated.profile, known)
    except SimulationError as error:
        parser.error(str(error))
    model = model or calibrated.model.removeprefix("hf://")
    keys = known.api_key or [environment.get("VLLM_API_KEY", "")]
    return Options(
        served=tuple(known.served_model_name or [model]),
        root=model,
        profile=slower(profile, 1.0 / known.speed),
        mean_output=calibrated.output,
        host=known.host,
        port=known.port,
        api_keys=tuple(key for key in keys if key),
        certificate=known.ssl_certfile,
        key=known.ssl_keyfile,
        seed=known.seed,
        startup_s=known.startup_seconds,
        drain_s=known.shutdown_timeout,
        tuner=not known.no_tuner,
        ignored=tuple(unknown),
    )


def _sized(profile: Profile, known: argparse.Namespace) -> Profile:
    """The profile as it is started. Raises SimulationError for what vLLM does not start with."""
    sized = replace(
        profile,
        max_num_seqs=known.max_num_seqs or profile.max_num_seqs,
        budget=known.max_num_batched_tokens or profile.budget,
    )
    if known.num_gpu_blocks_override:
        sized = replace(sized, kv_tokens=known.num_gpu_blocks_override * known.block_size)
    if known.max_model_len not in (None, AUTO):
        if known.max_model_len > sized.kv_tokens:
            raise SimulationError(
                f"--max-model-len {known.max_model_len}: a sequence of that length does not fit the KV cache "
                f"of {sized.kv_tokens} tokens; lower it"
            )
        sized = replace(sized, max_model_len=known.max_model_len)
    if sized.budget < sized.max_num_seqs:
        raise SimulationError(
            f"--max-num-batched-tokens {sized.budget} is less than --max-num-seqs {sized.max_num_seqs}, and "
            "a step has a token for each sequence at least; raise it"
        )
    return sized


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llamaserver-engine-sim",
        description=f"The HTTP surface of vLLM {VLLM} on a simulated engine, in real time.",
        epilog="All other flags of `vllm serve` are accepted and do nothing.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="what is served; nothing is loaded")
    parser.add_argument("--model", help="the same as a flag")
    parser.add_argument("--served-model-name", nargs="+", metavar="NAME", help="what clients call it")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen at")  # noqa: S104 - vLLM's
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one")
    parser.add_argument("--api-key", nargs="+", metavar="KEY", help="default: $VLLM_API_KEY")
    parser.add_argument("--ssl-certfile", metavar="FILE", help="serve HTTPS with this certificate")
    parser.add_argument("--ssl-keyfile", metavar="FILE", help="its key")
    parser.add_argument("--max-num-seqs", type=_count)
    parser.add_argument("--max-num-batched-tokens", type=_length)
    parser.add_argument("--max-model-len", type=_length_or_auto)
    parser.add_argument("--num-gpu-blocks-override", type=_count)
    parser.add_argument("--block-size", type=_count, default=16)
    parser.add_argument("--shutdown-timeout", type=_seconds, metavar="S", help="default: until all has ended")
    own = parser.add_argument_group("the simulator's own")
    own.add_argument(
        "--profile",
        default="H100-8B",
        help=f"a machine with a model: {', '.join(PROFILES)}, one of them with changes "
        "(H100-8B,kv_tokens=100000), or one of your own; see docs/simulate.md",
    )
    own.add_argument("--speed", type=_speed, default=1.0, help="steps are so many times as fast")
    own.add_argument("--seed", type=int, default=1, help="of the scatter of steps and of drawn lengths")
    own.add_argument(
        "--startup-seconds", type=_seconds, default=0.0, metavar="S", help="nothing is served before"
    )
    own.add_argument("--no-tuner", action="store_true", help="as an image in which the tuner does not load")
    parser.add_argument("--version", action="version", version=f"{__version__} (vLLM {VLLM})")
    return parser


def _length(text: str) -> int:
    """A number of tokens; 1k is 1000 and 1K is 1024, as in vLLM."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", text)
    number = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(
            f"a number of tokens from 1 up is wanted, such as 8192 or 8K: {text}"
        )
    return int(number)


def _length_or_auto(text: str) -> int:
    return AUTO if text in ("auto", "-1") else _length(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 up is wanted: {text}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is wanted, 0 to 65535: {text}")
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, least=0.0, wanted="a number of seconds from 0 up")


def _speed(text: str) -> float:
    return _number(text, least=1e-3, wanted="a number from 0.001 up")


def _number(text: str, least: float, wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number < 1e9:
        raise argparse.ArgumentTypeError(f"{wanted} is wanted: {text}")
    return number

"""Arguments and variables of the engine that belong to a field or to the operator, and what to use instead.

Each entry is one CEL rule in the schema and one check here; the check here also catches the abbreviations
that argparse accepts (`--max-num-se`), which vLLM does not switch off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pydantic import JsonValue

from llamaserver.api.base import cel, rules


class Managed(NamedTuple):
    """Flags that are refused in extraArgs, all for one reason with one cure."""

    flags: tuple[str, ...]
    cure: str


MANAGED: Final = (
    Managed(("--max-num-seqs",), "set spec.engine.maxNumSeqs"),
    Managed(("--max-num-active-seqs",), "set spec.tuning.numSeqs.max"),
    Managed(("--max-num-batched-tokens",), "set spec.engine.maxNumBatchedTokens"),
    Managed(("--max-model-len",), "set spec.engine.maxModelLen"),
    Managed(("--tensor-parallel-size", "-tp"), "set spec.engine.tensorParallelSize"),
    Managed(("--gpu-memory-utilization",), "set spec.engine.gpuMemoryUtilization"),
    Managed(("--model",), "set spec.model.uri"),
    Managed(("--revision",), "set spec.model.revision"),
    Managed(("--served-model-name",), "set spec.model.servedNames"),
    Managed(("--hf-token",), "set spec.model.tokenSecretRef"),
    Managed(("--shutdown-timeout",), "set spec.shutdown.drainTimeout"),
    Managed(("--api-key",), "set spec.engine.apiKeySecretRef"),
    Managed(
        ("--host", "--port", "--uds", "--grpc", "--headless"),
        "remove it, for the probes, the Service and the operator reach the engine by HTTP on port 8000",
    ),
    Managed(("--ssl-keyfile", "--ssl-certfile", "--enable-ssl-refresh"), "set spec.engine.tls"),
    Managed(
        ("--ssl-ciphers",),
        "remove it, for spec.engine.tls serves TLS 1.2 and newer with the ciphers of the image's own OpenSSL",
    ),
    Managed(
        ("--ssl-ca-certs", "--ssl-cert-reqs"),
        "remove it, for the probes have no certificate of a client; set spec.engine.tls and "
        "spec.engine.apiKeySecretRef, or ask clients for theirs in a gateway in front of it",
    ),
    Managed(("--disable-log-stats",), "remove it, or no objective can be held"),
    Managed(("--config",), "write its arguments in spec.engine.extraArgs, where they are checked"),
)

SECRET_VARIABLES: Final = ("VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MERGED_VARIABLES: Final = ("VLLM_PLUGINS", "PYTHONPATH")
OPERATOR_PREFIX: Final = "LLAMASERVER_"
METRICS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"

OPERATOR_CURE: Final = "variables that start with LLAMASERVER_ are the operator's: remove it"
METRICS_CURE: Final = (
    "remove PROMETHEUS_MULTIPROC_DIR: vLLM sets it where needed, and old files there falsify metrics"
)
PLAIN_TEXT_CURE: Final = (
    "is a secret, and this resource can be read by many: set it by valueFrom.secretKeyRef"
)
MERGED_CURE: Final = "is merged with what the operator sets: write it as value, not valueFrom"


def flag_name(argument: str) -> str:
    """The flag in one word of extraArgs as vLLM reads it: no value, no JSON path, dashes; empty for no
    flag.
    """
    if not argument.startswith("-"):
        return ""
    head = argument.partition("=")[0]
    if not head.startswith("--"):
        return head
    return head.partition(".")[0].replace("_", "-")


def managed_flag(argument: str) -> Managed | None:
    """The entry that refuses `argument`, also when it is written with underscores, with a value or
    abbreviated.
    """
    name = flag_name(argument)
    for entry in MANAGED:
        if name in entry.flags:
            return entry
    if len(name) > len("--") and name.startswith("--"):
        for entry in MANAGED:
            if any(flag.startswith(name) for flag in entry.flags):
                return entry
    return None


def refusal(entry: Managed) -> str:
    """The message of an entry, the same from the API server and from the operator."""
    return f"{', '.join(entry.flags)} cannot be set here: {entry.cure}"


def env_problems(name: str, *, plain: bool, referred: bool) -> Iterator[str]:
    """Why a variable of spec.engine.env is refused; `plain` when it has a value, `referred` when it has
    valueFrom.
    """
    if name.startswith(OPERATOR_PREFIX):
        yield OPERATOR_CURE
    if name == METRICS_VARIABLE:
        yield METRICS_CURE
    if name in SECRET_VARIABLES and plain:
        yield f"{name} {PLAIN_TEXT_CURE}"
    if name in MERGED_VARIABLES and referred:
        yield f"{name} {MERGED_CURE}"


def _pattern(flags: Sequence[str]) -> str:
    """A regular expression for the flags, with dashes or underscores, alone or followed by `=`."""
    return "^(" + "|".join(_spelled(flag) for flag in flags) + ")(=|$)"


def pattern_of(flags: Sequence[str]) -> str:
    """The same for flags that may take a JSON path: `--speculative-config.method=ngram`."""
    return _pattern(flags).replace("(=|$)", "(=|[.]|$)")


def _spelled(flag: str) -> str:
    return "--" + flag.removeprefix("--").replace("-", "[-_]") if flag.startswith("--") else flag


def _argument_rules() -> Iterator[dict[str, str]]:
    for entry in MANAGED:
        yield cel(f"!self.exists(a, a.matches({_pattern(entry.flags)!r}))", refusal(entry))


def _env_rules() -> Iterator[dict[str, str]]:
    yield cel(f"!self.exists(e, e.name.startsWith({OPERATOR_PREFIX!r}))", OPERATOR_CURE)
    yield cel(f"!self.exists(e, e.name == {METRICS_VARIABLE!r})", METRICS_CURE)
    for name in SECRET_VARIABLES:
        yield cel(f"!self.exists(e, e.name == {name!r} && has(e.value))", f"{name} {PLAIN_TEXT_CURE}")
    for name in MERGED_VARIABLES:
        yield cel(f"!self.exists(e, e.name == {name!r} && has(e.valueFrom))", f"{name} {MERGED_CURE}")


EXTRA_ARGS_RULES: Final[dict[str, JsonValue]] = rules(*_argument_rules())
ENV_RULES: Final[dict[str, JsonValue]] = rules(*_env_rules())

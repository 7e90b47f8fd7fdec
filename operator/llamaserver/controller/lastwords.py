"""What an engine that ended died of, from its last words: the termination message, or the end of its log.

Text in, cause and advice out. The phrases are vLLM's own and those of the libraries it stands on; of several
that are found the first in the list counts, for a traceback names the cause and what followed from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from llamaserver.api.conditions import Reason
from llamaserver.api.features import TWINS
from llamaserver.api.managed import MANAGED, flag_name

LONGEST_LINE: Final = 300

Advice = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Death:
    """Why an engine ended. `line` is the one of its last words that says so, cut to a readable length."""

    reason: Reason
    advice: str
    line: str


@dataclass(frozen=True, slots=True)
class _Sign:
    """Phrases that all speak of one cause, and what to do about it; the advice may use what was said."""

    reason: Reason
    phrases: re.Pattern[str]
    advice: str | Advice


def cause_of_death(said: str) -> Death | None:
    """The cause that an engine's last words name; None when they name none that is known."""
    for sign in _SIGNS:
        # A traceback shows the line that raised an error before the error itself.
        for found in list(sign.phrases.finditer(said))[-1:]:
            advice = sign.advice if isinstance(sign.advice, str) else sign.advice(said)
            return Death(sign.reason, advice, _line(said, found.start(), found.end()))
    return None


def death_by_exit_code(code: int | None) -> str:
    """What an exit code alone tells, in words; empty where it tells nothing."""
    return _CODES.get(code or 0, "")


def last_words(said: str, limit: int = LONGEST_LINE) -> str:
    """The end of a text, where a traceback says what it was about."""
    return said if len(said) <= limit else "…" + said[1 - limit :]


def _line(said: str, start: int, end: int) -> str:
    """The line around what was found, with what is found in it where the line is long."""
    first = said.rfind("\n", 0, start) + 1
    last = len(said) if (found := said.find("\n", end)) < 0 else found
    line = said[first:last].strip()
    if len(line) <= LONGEST_LINE:
        return line
    return f"…{said[start : min(last, start + LONGEST_LINE - 2)].strip()}…"


def _shorter_context(said: str) -> str:
    """vLLM estimates what would fit, mostly."""
    fits = re.search(r"estimated maximum model length is (\d+)|stored in KV cache \((\d+)\)", said)
    length = f" (at most {fits[1] or fits[2]} would fit)" if fits else ""
    return (
        f"lower spec.engine.maxModelLen{length}, raise spec.engine.gpuMemoryUtilization, or use a larger "
        "accelerator or more of them"
    )


def _smaller_warm_up(said: str) -> str:
    requests = re.search(r"warming up sampler with (\d+) dummy requests", said)
    most = f" below {requests[1]}" if requests else ""
    return f"lower spec.engine.maxNumSeqs{most} or spec.engine.gpuMemoryUtilization"


def _argument(said: str) -> str:
    named = re.search(r"unrecognized arguments: (\S+)|error: argument (\S+?):", said)
    what = (named[1] or named[2]) if named else "the argument"
    return (
        f"correct {what} in {_where(what)}, or use an image whose vLLM knows it; the tag of "
        "spec.engine.image tells the release"
    )


def _where(argument: str) -> str:
    """The fields in which an argument may stand, as argparse writes it: `--quantization/-q`."""
    flags = {flag_name(word) for word in argument.split("/")}
    for twin in TWINS:
        if flags & {*twin.flags}:
            return f"spec.{'.'.join(twin.path)} or spec.engine.extraArgs"
    for entry in MANAGED:
        if flags & {*entry.flags} and entry.cure.startswith("set spec."):
            return entry.cure.removeprefix("set ")
    return "spec.engine.extraArgs"


def _sign(reason: Reason, advice: str | Advice, *phrases: str) -> _Sign:
    return _Sign(reason, re.compile("|".join(f"(?:{phrase})" for phrase in phrases), re.IGNORECASE), advice)


_SIGNS: Final = (
    _sign(
        Reason.PORT_VARIABLE_INVALID,
        "the pods take no variables from Services: remove VLLM_PORT from spec.engine.env or from the image",
        r"VLLM_PORT '[^']*' (?:appears to be a URI|must be a valid integer)",
        r"invalid literal for int\(\) with base 10: 'tcp://",
    ),
    _sign(
        Reason.ARGUMENT_REFUSED,
        _argument,
        r"error: unrecognized arguments:",
        r"error: argument \S+: (?:invalid|expected|not allowed)",
        r"error: ambiguous option",
    ),
    _sign(
        Reason.OUT_OF_MEMORY_AT_START,
        _smaller_warm_up,
        r"out of memory occurred when warming up sampler",
    ),
    _sign(
        Reason.KV_CACHE_TOO_SMALL,
        _shorter_context,
        r"larger than the available KV cache memory",
        r"larger than the maximum number of tokens that can be stored in KV cache",
    ),
    _sign(
        Reason.KV_CACHE_TOO_SMALL,
        "the weights leave no room for a KV cache: raise spec.engine.gpuMemoryUtilization, quantise, or use "
        "a larger accelerator or more of them with spec.engine.tensorParallelSize",
        r"No available memory for the cache blocks",
    ),
    _sign(
        Reason.ACCELERATOR_MEMORY_IN_USE,
        "something else holds memory of this accelerator (or of the node, on the CPU): end it, keep the pods "
        "off it by spec.scheduling.nodeSelector, or lower spec.engine.gpuMemoryUtilization",
        r"memory on (?:device|node) .{0,80} on startup is less than desired (?:GPU|CPU) memory utilization",
    ),
    _sign(
        Reason.OUT_OF_MEMORY_AT_START,
        "lower spec.engine.maxNumSeqs, maxModelLen or gpuMemoryUtilization, or use a larger accelerator",
        r"\bout of memory\b",
        r"OutOfMemoryError",
        r"CUBLAS_STATUS_ALLOC_FAILED",
    ),
    _sign(
        Reason.DRIVER_TOO_OLD,
        "update the node's driver, choose nodes that have a newer one by spec.scheduling.nodeSelector, or "
        "use an image that was built for an older CUDA",
        r"NVIDIA driver on your system is too old",
        r"driver version is insufficient for CUDA runtime version",
        r"unsatisfied condition: cuda\s*>=",
        r"forward compatibility was attempted on non supported HW",
        r"unsupported display driver / cuda driver combination",
    ),
    _sign(
        Reason.ACCELERATOR_NOT_FOUND,
        "ask for accelerators in spec.accelerator, name their runtime in spec.scheduling.runtimeClassName "
        "where the cluster has one, or use an image that was built for what the node has",
        r"Failed to infer device type",
        r"No CUDA GPUs are available",
        r"Found no NVIDIA driver on your system",
        r"no CUDA-capable device is detected",
        r"libcuda\.so\.1: cannot open shared object file",
    ),
    _sign(
        Reason.MODEL_NOT_FOUND,
        "correct spec.model.uri and spec.model.revision; a private repository looks the same to those who "
        "may not see it, and needs spec.model.tokenSecretRef",
        r"Repository Not Found",
        r"RepositoryNotFoundError",
        r"RevisionNotFoundError",
        r"is not a valid model identifier listed on",
        r"Invalid repository ID or local directory specified",
        r"does not appear to have a file named config\.json",
        r"HFValidationError",
    ),
    _sign(
        Reason.MODEL_ACCESS_DENIED,
        "the hub does not know the token: put a valid one into the Secret of spec.model.tokenSecretRef, and "
        "the next try uses it",
        r"Invalid credentials in Authorization header",
        r"Invalid user token",
    ),
    _sign(
        Reason.MODEL_ACCESS_DENIED,
        "ask for access on the model's page of the hub, and give a token that has it by "
        "spec.model.tokenSecretRef",
        r"gated repo",
        r"GatedRepoError",
        r"Access to model \S+ is restricted",
        r"Invalid username or password",
        r"(?:401|403) Client Error",
        r"Client error '40[13] ",
    ),
    _sign(
        Reason.HUB_UNREACHABLE,
        "the certificate of the hub, of its mirror or of a proxy is not trusted: mount the authority's by "
        "spec.podTemplate and name the file by SSL_CERT_FILE in spec.engine.env",
        r"CERTIFICATE_VERIFY_FAILED",
    ),
    _sign(
        Reason.HUB_UNREACHABLE,
        "take HF_HUB_OFFLINE out of spec.engine.env, or fill the claim of spec.model.cache with the model",
        r"OfflineModeIsEnabled",
    ),
    _sign(
        Reason.HUB_UNREACHABLE,
        "let the pods reach the hub, name a mirror by HF_ENDPOINT in spec.engine.env, serve the weights from "
        "a volume (pvc://), or set HF_HUB_OFFLINE=1 in spec.engine.env where all of the model is in the "
        "claim of spec.model.cache already",
        r"couldn't connect to '?https?://",
        r"LocalEntryNotFoundError",
        r"Failed to (?:resolve|establish a new connection)",
        r"Temporary failure in name resolution",
        r"HubUnreachableError",
        r"CAS service error",
        r"No byte has come for",
    ),
    _sign(
        Reason.MODEL_UNSUPPORTED,
        "use an image with a newer vLLM, or another model",
        r"Model architectures? .{0,200} (?:are not supported for now|is not supported in-tree)",
        r"does not recognize this architecture",
    ),
    _sign(
        Reason.MODEL_UNSUPPORTED,
        "name a repository that holds the weights as safetensors; for GGUF add --load-format=gguf to "
        "spec.engine.extraArgs, and vLLM downloads what it reads by itself",
        r"holds no weights that vLLM reads",
    ),
    _sign(
        Reason.STARTUP_FAILED,
        "upgrade the tuner image: it is of an earlier release than the operator, and cannot download models "
        "(tuner.image of the chart, --tuner-image)",
        r"No module named llamaserver_tuner\.download",
        r"finding module specification for 'llamaserver_tuner\.download'",
    ),
    _sign(
        Reason.STARTUP_FAILED,
        "put a certificate and the key that belongs to it, as PEM and without a passphrase, into tls.crt and "
        "tls.key of the Secret that spec.engine.tls names, and a later try uses them",
        r"KEY_VALUES_MISMATCH",
        r"\[SSL\] PEM lib",
        r"EE_KEY_TOO_SMALL|CA_MD_TOO_WEAK",
        r"load_cert_chain\(",
    ),
    _sign(
        Reason.ENGINE_SETTING_INVALID,
        "lower spec.engine.maxModelLen to what the model allows, or leave it out",
        r"is greater than the derived max_model_len",
    ),
    _sign(
        Reason.ENGINE_SETTING_INVALID,
        "choose a spec.engine.tensorParallelSize that divides the model's attention heads",
        r"must be divisible by tensor parallel size",
    ),
    _sign(
        Reason.ENGINE_SETTING_INVALID,
        "if you trust the model's code, add --trust-remote-code to spec.engine.extraArgs",
        r"contains custom code which must be executed",
        r"`trust_remote_code=True`",
    ),
    _sign(
        Reason.STARTUP_FAILED,
        "let user and group 65532 write to the claim of spec.model.cache: by the storage class's or the "
        "server's settings where it heeds no fsGroup, as NFS does not",
        r"Permission denied: '/var/cache/llamaserver",
        r"Read-only file system: '/var/cache/llamaserver",
    ),
    _sign(
        Reason.DISK_FULL,
        "give spec.model.cache a claim that is large enough, or raise ephemeral-storage in "
        "spec.engine.resources",
        r"No space left on device",
        r"\[Errno 28\]",
        r"Disk quota exceeded",
    ),
)

_CODES: Final = {
    132: "an instruction that the node's processor does not have: the image is built for a newer one",
    134: "it aborted itself",
    135: "a bus error, mostly a full /dev/shm",
    137: "killed: it did not answer any more, or memory was short",
    139: "a segmentation fault",
    143: "told to end: it did not answer any more",
}

"""What must agree between fields. Each rule is here twice: as CEL for the API server, and as a check of a
parsed spec.

The check is not a luxury: a resource stored under an older schema was never seen by today's rules, and a rule
may need more than CEL can say. Every bad example in the tests is put to both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from llamaserver.api.base import cel, rules
from llamaserver.api.defaults import (
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MIN_NUM_SEQS,
    MIN_REPLICAS,
    SCALING_MODE,
    TENSOR_PARALLEL_SIZE,
)
from llamaserver.api.engine import (
    ENV_NAME,
    ENV_NAME_CURE,
    IMAGE_CURE,
    MIG_CURE,
    PLUGIN_NAME,
    PLUGIN_NAME_CURE,
    RESOURCE_CURE,
    RESOURCE_NAME,
)
from llamaserver.api.enums import ScalingMode
from llamaserver.api.errors import Problem
from llamaserver.api.managed import env_problems, flag_name, managed_flag, refusal
from llamaserver.api.model import ONLY_HF, SERVED_NAME, SERVED_NAME_CURE, Scheme, parse_uri
from llamaserver.api.placement import LONGEST, TOO_LONG, TolerationOperator

if TYPE_CHECKING:
    from llamaserver.api.server import LlamaServerSpec

_SEQS: Final = f"(has(self.engine.maxNumSeqs) ? self.engine.maxNumSeqs : {MAX_NUM_SEQS})"
_TOKENS: Final = (
    f"(has(self.engine.maxNumBatchedTokens) ? self.engine.maxNumBatchedTokens : {MAX_NUM_BATCHED_TOKENS})"
)
_TP: Final = (
    f"(has(self.engine.tensorParallelSize) ? self.engine.tensorParallelSize : {TENSOR_PARALLEL_SIZE})"
)
_OTHER_PARALLEL: Final = (
    "^(--pipeline[-_]parallel[-_]size|-pp|--data[-_]parallel[-_]size([-_]local)?|-dp|-dpl)(=|$)"
)

REPLICAS_CURE: Final = (
    "is read only when spec.scaling.mode is Fixed or External: set that mode, or remove spec.replicas and "
    "bound the operator's choice by spec.scaling.minReplicas and spec.scaling.maxReplicas"
)
CAP_CURE: Final = (
    "must not be more than spec.engine.maxNumSeqs, the ceiling the engine starts with: lower it or raise "
    "maxNumSeqs"
)
BATCH_CURE: Final = (
    "must be at least spec.engine.maxNumSeqs, one token a sequence: raise it or lower maxNumSeqs"
)
PARALLEL_CURE: Final = (
    "must equal spec.accelerator.count: set both alike, or give the rest to --pipeline-parallel-size or "
    "--data-parallel-size in spec.engine.extraArgs"
)
NO_ACCELERATOR_CURE: Final = "needs accelerators: set spec.accelerator.count to the same number, or remove it"
TWICE_CURE: Final = "belongs to spec.accelerator: remove it here"
GIVEN_CURE: Final = "is set by spec.model.tokenSecretRef already: remove it from spec.engine.env"

SPEC_RULES: Final[dict[str, JsonValue]] = rules(
    cel(
        "!has(self.replicas) || (has(self.scaling) && has(self.scaling.mode) && "
        "(self.scaling.mode == 'Fixed' || self.scaling.mode == 'External'))",
        REPLICAS_CURE,
        ".replicas",
    ),
    cel(
        f"!has(self.tuning) || !has(self.tuning.numSeqs) || !has(self.tuning.numSeqs.max) || "
        f"self.tuning.numSeqs.max <= {_SEQS}",
        CAP_CURE,
        ".tuning.numSeqs.max",
    ),
    cel(
        f"!has(self.tuning) || !has(self.tuning.numSeqs) || !has(self.tuning.numSeqs.min) || "
        f"self.tuning.numSeqs.min <= {_SEQS}",
        CAP_CURE,
        ".tuning.numSeqs.min",
    ),
    cel(f"{_TOKENS} >= {_SEQS}", BATCH_CURE, ".engine.maxNumBatchedTokens"),
    cel(f"has(self.accelerator) || {_TP} == 1", NO_ACCELERATOR_CURE, ".engine.tensorParallelSize"),
    cel(
        f"!has(self.accelerator) || {_TP} == self.accelerator.count || (has(self.engine.extraArgs) && "
        f"self.engine.extraArgs.exists(a, a.matches({_OTHER_PARALLEL!r})))",
        PARALLEL_CURE,
        ".engine.tensorParallelSize",
    ),
    cel(
        "!has(self.accelerator) || !has(self.engine.resources) || ((!has(self.engine.resources.limits) || "
        "!(self.accelerator.resourceName in self.engine.resources.limits)) && "
        "(!has(self.engine.resources.requests) || !(self.accelerator.resourceName in "
        "self.engine.resources.requests)))",
        f"the accelerator {TWICE_CURE}",
        ".engine.resources",
    ),
    cel(
        "!has(self.model.tokenSecretRef) || !has(self.engine.env) || !self.engine.env.exists(e, e.name "
        "== 'HF_TOKEN')",
        f"HF_TOKEN {GIVEN_CURE}",
        ".engine.env",
    ),
)

Check = Callable[["LlamaServerSpec"], Iterator[Problem]]


def problems(spec: LlamaServerSpec) -> Iterator[Problem]:
    """Everything in a well-formed spec that does not go together, with the cure."""
    for check in _CHECKS:
        yield from check(spec)


def _replicas(spec: LlamaServerSpec) -> Iterator[Problem]:
    mode = (spec.scaling.mode if spec.scaling else None) or SCALING_MODE
    if spec.replicas is not None and mode not in (ScalingMode.FIXED, ScalingMode.EXTERNAL):
        yield Problem("spec.replicas", REPLICAS_CURE)
    least = (spec.scaling.min_replicas if spec.scaling else None) or MIN_REPLICAS
    most = spec.scaling.max_replicas if spec.scaling else None
    if most is not None and least > most:
        yield Problem(
            "spec.scaling.minReplicas",
            "must not be more than spec.scaling.maxReplicas: lower minReplicas or raise maxReplicas "
            f"({least} > {most})",
        )


def _cap(spec: LlamaServerSpec) -> Iterator[Problem]:
    ceiling = spec.engine.max_num_seqs or MAX_NUM_SEQS
    bounds = spec.tuning.num_seqs if spec.tuning else None
    if bounds is not None:
        least, most = bounds.min or MIN_NUM_SEQS, bounds.max
        if most is not None and least > most:
            yield Problem(
                "spec.tuning.numSeqs.min",
                f"must not be more than spec.tuning.numSeqs.max: lower min or raise max ({least} > {most})",
            )
        for name, value in (("min", bounds.min), ("max", most)):
            if value is not None and value > ceiling:
                yield Problem(f"spec.tuning.numSeqs.{name}", f"{CAP_CURE} ({value} > {ceiling})")
    budget = spec.engine.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS
    if budget < ceiling:
        yield Problem("spec.engine.maxNumBatchedTokens", f"{BATCH_CURE} ({budget} < {ceiling})")


def _parallel(spec: LlamaServerSpec) -> Iterator[Problem]:
    size = spec.engine.tensor_parallel_size or TENSOR_PARALLEL_SIZE
    field = "spec.engine.tensorParallelSize"
    if spec.accelerator is None:
        if size != 1:
            yield Problem(field, NO_ACCELERATOR_CURE)
        return
    others = _other_parallel(spec.engine.extra_args or ())
    if others is not None and size * others != spec.accelerator.count:
        got = f"{size}" if others == 1 else f"{size} x {others} by extraArgs"
        yield Problem(field, f"{PARALLEL_CURE} ({got}, count {spec.accelerator.count})")
    if spec.accelerator.resource_name.startswith("nvidia.com/mig-") and spec.accelerator.count != 1:
        yield Problem("spec.accelerator.count", MIG_CURE)


_PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
_DATA: Final = ("--data-parallel-size", "-dp")
_DATA_LOCAL: Final = ("--data-parallel-size-local", "-dpl")


def _other_parallel(arguments: tuple[str, ...]) -> int | None:
    """Accelerators of one pod per tensor-parallel rank that extraArgs ask for; None when that is not
    readable.
    """
    found: dict[tuple[str, ...], int] = {}
    for index, argument in enumerate(arguments):
        for names in (_PIPELINE, _DATA, _DATA_LOCAL):
            if flag_name(argument) in names:
                following = arguments[index + 1] if index + 1 < len(arguments) else ""
                value = argument.partition("=")[2] if "=" in argument else following
                if not value.isdecimal():
                    return None
                found[names] = int(value)
    return found.get(_PIPELINE, 1) * found.get(_DATA_LOCAL, found.get(_DATA, 1))


def _engine(spec: LlamaServerSpec) -> Iterator[Problem]:
    if re.search(r"\s", spec.engine.image):
        yield Problem("spec.engine.image", f"{IMAGE_CURE} (got {spec.engine.image!r})")
    for index, argument in enumerate(spec.engine.extra_args or ()):
        if (entry := managed_flag(argument)) is not None:
            yield Problem(f"spec.engine.extraArgs[{index}]", refusal(entry))
    for index, plugin in enumerate(spec.engine.plugins or ()):
        if not re.fullmatch(PLUGIN_NAME, plugin):
            yield Problem(f"spec.engine.plugins[{index}]", f"{PLUGIN_NAME_CURE} (got {plugin!r})")
    if spec.accelerator is not None:
        name = spec.accelerator.resource_name
        if not re.fullmatch(RESOURCE_NAME, name):
            yield Problem("spec.accelerator.resourceName", f"{RESOURCE_CURE} (got {name!r})")
        resources = spec.engine.resources
        for part in ("limits", "requests"):
            if resources is not None and name in (getattr(resources, part) or {}):
                yield Problem(f"spec.engine.resources.{part}", f"{name} {TWICE_CURE}")


def _env(spec: LlamaServerSpec) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, variable in enumerate(spec.engine.env or ()):
        field = f"spec.engine.env[{index}]"
        if not re.fullmatch(ENV_NAME, variable.name):
            yield Problem(f"{field}.name", f"{ENV_NAME_CURE} (got {variable.name!r})")
        if variable.name in seen:
            yield Problem(f"{field}.name", f"{variable.name} is there twice: keep one")
        seen.add(variable.name)
        source = variable.value_from
        if source is not None and variable.value is not None:
            yield Problem(field, "set either value or valueFrom, not both")
        if source is not None and (source.secret_key_ref is None) == (source.config_map_key_ref is None):
            yield Problem(f"{field}.valueFrom", "set exactly one of secretKeyRef and configMapKeyRef")
        for message in env_problems(
            variable.name, plain=variable.value is not None, referred=source is not None
        ):
            yield Problem(field, message)
    if spec.model.token_secret_ref is not None and "HF_TOKEN" in seen:
        yield Problem("spec.engine.env", f"HF_TOKEN {GIVEN_CURE}")


def _model(spec: LlamaServerSpec) -> Iterator[Problem]:
    for index, name in enumerate(spec.model.served_names or ()):
        if not re.fullmatch(SERVED_NAME, name):
            yield Problem(f"spec.model.servedNames[{index}]", f"{SERVED_NAME_CURE} (got {name!r})")
    try:
        source = parse_uri(spec.model.uri)
    except ValueError as error:
        yield Problem("spec.model.uri", str(error))
        return
    if source.scheme is not Scheme.HF:
        for name, value in (
            ("revision", spec.model.revision),
            ("tokenSecretRef", spec.model.token_secret_ref),
        ):
            if value is not None:
                yield Problem(f"spec.model.{name}", ONLY_HF)


def _placement(spec: LlamaServerSpec) -> Iterator[Problem]:
    for index, toleration in enumerate((spec.scheduling.tolerations if spec.scheduling else None) or ()):
        field = f"spec.scheduling.tolerations[{index}]"
        exists = toleration.operator is TolerationOperator.EXISTS
        if exists and toleration.value is not None:
            yield Problem(
                f"{field}.value",
                "with operator Exists no value is compared: remove value, or set operator: Equal",
            )
        if toleration.key is None and not exists:
            yield Problem(
                f"{field}.operator", "without a key operator must be Exists, which tolerates every taint"
            )
    timeout = spec.startup.timeout if spec.startup else None
    drain = spec.shutdown.drain_timeout if spec.shutdown else None
    for field, duration in (("spec.startup.timeout", timeout), ("spec.shutdown.drainTimeout", drain)):
        if duration is not None and duration.seconds > LONGEST.seconds:
            yield Problem(field, TOO_LONG)


_CHECKS: Final[tuple[Check, ...]] = (_model, _engine, _env, _parallel, _cap, _replicas, _placement)

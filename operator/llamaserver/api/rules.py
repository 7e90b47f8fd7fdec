"""What must agree between fields. Each rule is here twice: as CEL for the API server, and as a check of a
parsed spec.

The check is not a luxury: a resource stored under an older schema was never seen by today's rules, and a rule
may need more than CEL can say. Every bad example in the tests is put to both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from pydantic import JsonValue

from llamaserver.api.accelerator import MIG_CURE, ONE_WAY, RESOURCE_CURE, RESOURCE_NAME, AcceleratorSpec
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
    MORE_THAN_LIMIT,
    ONE_SOURCE,
    PLUGIN_NAME,
    PLUGIN_NAME_CURE,
)
from llamaserver.api.enums import ScalingMode
from llamaserver.api.errors import Problem
from llamaserver.api.featurerules import feature_problems
from llamaserver.api.features import SERVED_NAME, SERVED_NAME_CURE, TWIN_RULES
from llamaserver.api.managed import env_problems, managed_flag, refusal
from llamaserver.api.model import NOTHING_FROM_HF, ONLY_HF
from llamaserver.api.offloading import OFFLOADING_RULES
from llamaserver.api.offloadingrules import offloading_problems
from llamaserver.api.parallel import other_parallel
from llamaserver.api.placementrules import placement_problems
from llamaserver.api.podtemplate import CACHE_CURE, CACHE_VOLUME
from llamaserver.api.quantity import quantity_value
from llamaserver.api.restart import LONGEST, SHORTEST, TOO_OFTEN, TOO_SELDOM
from llamaserver.api.source import Scheme, parse_uri
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.tls import TLS_RULES
from llamaserver.api.weights import NAME_RULES, name_problems

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
API_KEY_CURE: Final = (
    "VLLM_API_KEY is set by spec.engine.apiKeySecretRef already: remove it from spec.engine.env"
)
SPECULATION_CURE: Final = (
    "must be at least spec.engine.maxNumSeqs times one more than numSpeculativeTokens, or some sequences "
    "would get no token in a step: raise it or lower maxNumSeqs"
)

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
        "!has(self.accelerator) || !has(self.accelerator.resourceName) || "
        "!has(self.engine.resources) || ((!has(self.engine.resources.limits) || "
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
    cel(
        "!has(self.engine.apiKeySecretRef) || !has(self.engine.env) || !self.engine.env.exists(e, e.name "
        "== 'VLLM_API_KEY')",
        API_KEY_CURE,
        ".engine.env",
    ),
    cel(
        f"!has(self.engine.speculativeConfig) || "
        f"{_TOKENS} >= {_SEQS} * (1 + self.engine.speculativeConfig.numSpeculativeTokens)",
        SPECULATION_CURE,
        ".engine.maxNumBatchedTokens",
    ),
    *TWIN_RULES,
    *OFFLOADING_RULES,
    cel(
        "!has(self.model.cache) || !has(self.podTemplate) || !has(self.podTemplate.spec) || "
        "!has(self.podTemplate.spec.volumes) || "
        f"!self.podTemplate.spec.volumes.exists(v, v.name == {CACHE_VOLUME!r})",
        f"{CACHE_VOLUME} {CACHE_CURE}",
        ".podTemplate.spec.volumes",
    ),
    *NAME_RULES,
    *TLS_RULES,
)

Check = Callable[[LlamaServerSpec], Iterator[Problem]]


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
    speculation = spec.engine.speculative_config
    if speculation is not None and budget < (need := ceiling * (1 + speculation.num_speculative_tokens)):
        yield Problem("spec.engine.maxNumBatchedTokens", f"{SPECULATION_CURE} ({budget} < {need})")


def _restart(spec: LlamaServerSpec) -> Iterator[Problem]:
    restart = spec.tuning.restart if spec.tuning else None
    if restart is None:
        return
    seconds = restart.min_interval.seconds
    if not SHORTEST.seconds <= seconds <= LONGEST.seconds:
        cure = TOO_OFTEN if seconds < SHORTEST.seconds else TOO_SELDOM
        yield Problem("spec.tuning.restart.minInterval", f"{cure} (got {restart.min_interval})")


def _parallel(spec: LlamaServerSpec) -> Iterator[Problem]:
    size = spec.engine.tensor_parallel_size or TENSOR_PARALLEL_SIZE
    field = "spec.engine.tensorParallelSize"
    if spec.accelerator is None:
        if size != 1:
            yield Problem(field, NO_ACCELERATOR_CURE)
        return
    others = other_parallel(spec.engine.extra_args or ())
    if others is not None and size * others != spec.accelerator.count:
        got = f"{size}" if others == 1 else f"{size} x {others} by extraArgs"
        yield Problem(field, f"{PARALLEL_CURE} ({got}, count {spec.accelerator.count})")
    if spec.accelerator.is_slice and spec.accelerator.count != 1:
        yield Problem("spec.accelerator.count", MIG_CURE)


def _engine(spec: LlamaServerSpec) -> Iterator[Problem]:
    if re.search(r"\s", spec.engine.image):
        yield Problem("spec.engine.image", f"{IMAGE_CURE} (got {spec.engine.image!r})")
    for index, argument in enumerate(spec.engine.extra_args or ()):
        if (entry := managed_flag(argument)) is not None:
            yield Problem(f"spec.engine.extraArgs[{index}]", refusal(entry))
    for index, plugin in enumerate(spec.engine.plugins or ()):
        if not re.fullmatch(PLUGIN_NAME, plugin):
            yield Problem(f"spec.engine.plugins[{index}]", f"{PLUGIN_NAME_CURE} (got {plugin!r})")
    yield from _requests(spec)
    if spec.accelerator is not None:
        yield from _accelerator(spec, spec.accelerator)


def _requests(spec: LlamaServerSpec) -> Iterator[Problem]:
    resources = spec.engine.resources
    limits = (resources.limits if resources else None) or {}
    for name, asked in ((resources.requests if resources else None) or {}).items():
        if name in limits and quantity_value(asked) > quantity_value(limits[name]):
            yield Problem(
                "spec.engine.resources.requests", f"{name} {MORE_THAN_LIMIT} ({asked} > {limits[name]})"
            )


def _accelerator(spec: LlamaServerSpec, accelerator: AcceleratorSpec) -> Iterator[Problem]:
    name = accelerator.resource_name
    if (name is None) == (accelerator.resource_claim_template_name is None):
        yield Problem("spec.accelerator", ONE_WAY)
    if name is None:
        return
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
        if source is not None and source.given != 1:
            yield Problem(f"{field}.valueFrom", ONE_SOURCE)
        for message in env_problems(
            variable.name, plain=variable.value is not None, referred=source is not None
        ):
            yield Problem(field, message)
    if spec.engine.api_key_secret_ref is not None and "VLLM_API_KEY" in seen:
        yield Problem("spec.engine.env", API_KEY_CURE)
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
    yield from name_problems(spec)
    if source.scheme is Scheme.HF:
        return
    if spec.model.revision is not None:
        yield Problem("spec.model.revision", ONLY_HF)
    adapters = spec.model.lora.adapters if spec.model.lora else ()
    if spec.model.token_secret_ref is not None and not any(
        adapter.uri.startswith("hf://") for adapter in adapters
    ):
        yield Problem("spec.model.tokenSecretRef", NOTHING_FROM_HF)


_CHECKS: Final[tuple[Check, ...]] = (
    _model,
    _engine,
    _env,
    _parallel,
    _cap,
    _replicas,
    placement_problems,
    feature_problems,
    offloading_problems,
    _restart,
)

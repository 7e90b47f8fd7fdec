"""Which changes make pods roll. The table in docs/resource.md is the promise; here it is kept, row by row."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llamaserver.api import parse
from llamaserver.api.rolling import ROLLS_NOTHING, rolling_digest
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.wording import alias_of
from llamaserver.desired import BuildSettings, DesiredFleet, TunerDelivery

Object = dict[str, Any]
Make = Callable[..., Any]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "resource.md"
GPU = {"resourceName": "nvidia.com/gpu", "count": 1}
TP = {"spec.accelerator": {**GPU, "count": 2}, "spec.engine.tensorParallelSize": 2}


class Move(NamedTuple):
    """One field changed: from what, to what, and whether the pods roll."""

    rolls: bool
    to: Object
    start: Object | None = None


MEMORY = {"spec.engine.resources.requests": {"memory": "32Gi"}}
FIELDS = {
    "spec.replicas": Move(
        False,
        {"spec.replicas": 3, "spec.scaling.mode": "Fixed"},
        {"spec.replicas": 2, "spec.scaling.mode": "Fixed"},
    ),
    "spec.suspend": Move(False, {"spec.suspend": True}),
    "spec.metrics.source": Move(False, {"spec.metrics.source": "Prometheus"}),
    "spec.model.uri": Move(True, {"spec.model.uri": "hf://a/b"}),
    "spec.model.revision": Move(True, {"spec.model.revision": "main"}),
    "spec.model.servedNames": Move(True, {"spec.model.servedNames": ["x"]}),
    "spec.model.tokenSecretRef": Move(True, {"spec.model.tokenSecretRef": {"name": "t"}}),
    "spec.model.lora": Move(True, {"spec.model.lora": {"adapters": [{"name": "a", "uri": "hf://o/a"}]}}),
    "spec.model.chatTemplate": Move(
        True, {"spec.model.chatTemplate.configMapKeyRef": {"name": "t", "key": "k"}}
    ),
    "spec.model.cache": Move(True, {"spec.model.cache.persistentVolumeClaim.claimName": "c"}),
    "spec.engine.image": Move(True, {"spec.engine.image": "vllm/vllm-openai:v0.33.0"}),
    "spec.engine.imagePullPolicy": Move(True, {"spec.engine.imagePullPolicy": "Always"}),
    "spec.engine.maxNumSeqs": Move(True, {"spec.engine.maxNumSeqs": 128}),
    "spec.engine.maxNumBatchedTokens": Move(True, {"spec.engine.maxNumBatchedTokens": 4096}),
    "spec.engine.maxModelLen": Move(True, {"spec.engine.maxModelLen": 4096}),
    "spec.engine.tensorParallelSize": Move(
        True,
        TP,
        {**TP, "spec.engine.tensorParallelSize": 1, "spec.engine.extraArgs": ["-pp", "2"]},
    ),
    "spec.engine.gpuMemoryUtilization": Move(True, {"spec.engine.gpuMemoryUtilization": 0.8}),
    "spec.engine.kvOffloading": Move(
        True,
        {"spec.engine.kvOffloading": {"size": "16Gi"}, **MEMORY, "spec.accelerator": GPU},
        {**MEMORY, "spec.accelerator": GPU},
    ),
    "spec.engine.quantization": Move(True, {"spec.engine.quantization": "fp8"}),
    "spec.engine.toolCallParser": Move(True, {"spec.engine.toolCallParser": "hermes"}),
    "spec.engine.reasoningParser": Move(True, {"spec.engine.reasoningParser": "deepseek_r1"}),
    "spec.engine.speculativeConfig": Move(
        True, {"spec.engine.speculativeConfig": {"method": "ngram", "numSpeculativeTokens": 1}}
    ),
    "spec.engine.apiKeySecretRef": Move(True, {"spec.engine.apiKeySecretRef": {"name": "k"}}),
    "spec.engine.tls": Move(True, {"spec.engine.tls": {"secretName": "t"}}),
    "spec.engine.extraArgs": Move(True, {"spec.engine.extraArgs": ["-O3"]}),
    "spec.engine.env": Move(True, {"spec.engine.env": [{"name": "A", "value": "1"}]}),
    "spec.engine.plugins": Move(True, {"spec.engine.plugins": ["mine"]}),
    "spec.engine.resources": Move(True, {"spec.engine.resources.limits": {"memory": "8Gi"}}),
    "spec.accelerator": Move(True, {"spec.accelerator": GPU}),
    "spec.slo": Move(
        False,
        {
            "spec.slo": {
                "interTokenLatency": {"target": "20ms", "statistic": "p99"},
                "precedence": "QueueTime",
            }
        },
        {"spec.slo": {"queueTime": {"target": "5s"}}},
    ),
    "spec.tuning.mode": Move(False, {"spec.tuning.mode": "Off"}, {"spec.tuning.mode": "Recommend"}),
    "spec.tuning.numSeqs.min": Move(False, {"spec.tuning.numSeqs.min": 8}),
    "spec.tuning.numSeqs.max": Move(False, {"spec.tuning.numSeqs.max": 64}),
    "spec.tuning.restart": Move(False, {"spec.tuning.restart.minInterval": "1h"}),
    "spec.tuning.prefillBudget": Move(False, {"spec.tuning.prefillBudget": "Fixed"}),
    "spec.scaling": Move(
        False,
        {"spec.scaling": {"mode": "Auto", "minReplicas": 2, "maxReplicas": 9}},
        {"spec.scaling": {"mode": "External"}},
    ),
    "spec.scheduling": Move(True, {"spec.scheduling.priorityClassName": "serving"}),
    "spec.podTemplate": Move(True, {"spec.podTemplate.metadata.annotations": {"a": "b"}}),
    "spec.rollout": Move(False, {"spec.rollout.maxSurge": 1}, {"spec.rollout.maxUnavailable": 2}),
    "spec.recovery": Move(False, {"spec.recovery.replaceStalledAfter": "5m"}),
    "spec.startup.timeout": Move(True, {"spec.startup.timeout": "45m"}),
    "spec.shutdown.drainTimeout": Move(True, {"spec.shutdown.drainTimeout": "5m"}),
}


def test_what_rolls_nothing_is_no_reason_for_a_rollout() -> None:
    still = {field.split(".")[1] for field, move in FIELDS.items() if not move.rolls}
    moving = {field.split(".")[1] for field, move in FIELDS.items() if move.rolls}
    assert still == ROLLS_NOTHING
    assert not moving & ROLLS_NOTHING


SETTINGS = {
    "public keys": (False, BuildSettings("llamaserver/tuner:0.1.0", public_keys={"k1": "PEM", "k2": "PEM"})),
    "tuner image": (True, BuildSettings("llamaserver/tuner:0.2.0")),
    "tuner delivery": (True, BuildSettings("llamaserver/tuner:0.1.0", TunerDelivery.IMAGE_VOLUME)),
}


def template(built: Make, changes: Object, **other: Any) -> Object:
    found: Object = built(changes, **other)["Deployment"]["spec"]["template"]
    return found


@pytest.mark.parametrize("field", FIELDS)
def test_only_what_must_roll_rolls(field: str, built: Make) -> None:
    move = FIELDS[field]
    assert (template(built, move.start or {}) != template(built, move.to)) is move.rolls


@pytest.mark.parametrize("field", FIELDS)
def test_what_rolls_is_what_a_restart_forgets_its_choice_for(field: str, changed: Make) -> None:
    move = FIELDS[field]
    before, after = (rolling_digest(parse(changed(spec)).spec) for spec in (move.start or {}, move.to))
    assert (before != after) is move.rolls


@pytest.mark.parametrize("name", SETTINGS)
def test_only_settings_that_must_roll_roll(name: str, built: Make) -> None:
    rolls, other = SETTINGS[name]
    assert (template(built, {}) != template(built, {}, settings=other)) is rolls


def test_the_number_of_replicas_never_rolls(built: Make) -> None:
    assert template(built, {}, fleet=DesiredFleet(1)) == template(built, {}, fleet=DesiredFleet(9))


def test_what_a_restart_has_chosen_rolls_where_restarts_are_asked_for(built: Make) -> None:
    asked = {"spec.tuning.restart.minInterval": "1h"}
    chosen = DesiredFleet(1, max_num_seqs=96)
    assert "--max-num-seqs=96" in str(template(built, asked, fleet=chosen))
    assert template(built, {}, fleet=chosen) == template(built, {}), "given up with the field"


@pytest.mark.parametrize(
    ("bounds", "chosen", "started"),
    [
        ({}, 300, 256),
        ({"min": 32}, 8, 8),
        ({"max": 64}, 96, 96),
        ({}, None, 256),
    ],
)
def test_a_chosen_number_is_at_most_the_specs_and_bounds_for_the_choice_roll_nothing(
    bounds: Object, chosen: int | None, started: int, built: Make
) -> None:
    asked = {"spec.tuning.restart.minInterval": "1h", "spec.tuning.numSeqs": bounds}
    made = template(built, asked, fleet=DesiredFleet(1, max_num_seqs=chosen))
    assert f"--max-num-seqs={started}" in str(made)


def documented() -> dict[str, bool]:
    """The table in the documentation: field -> whether it says that pods roll."""
    rows = re.findall(r"^\| `(spec\.[A-Za-z.]+)` \| (yes|no) \|", DOCS.read_text(), re.M)
    return {field: answer == "yes" for field, answer in rows}


def test_the_documentation_makes_exactly_these_promises() -> None:
    assert documented() == {field: move.rolls for field, move in FIELDS.items()}


def test_no_field_of_the_spec_is_without_a_promise() -> None:
    for name, field in LlamaServerSpec.model_fields.items():
        path = f"spec.{alias_of(field, name)}"
        assert any(known == path or known.startswith(f"{path}.") for known in FIELDS), path

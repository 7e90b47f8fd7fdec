"""What is refused, and in which words: by a real API server from the CRD, and again by `parse`, for
resources that were stored under an older schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from llamaserver.api import InvalidSpec, parse
from llamaserver.api.managed import MANAGED

Object = dict[str, Any]
Changed = Callable[..., Object]

GPU = {"resourceName": "nvidia.com/gpu", "count": 1}


class Bad(NamedTuple):
    """A mistake: what is written, where the message has to point, and the cure it has to name."""

    changes: Object
    field: str
    cure: str


DURATION = "write a positive number and a unit"

BAD = {
    "a duration without a unit": Bad(
        {"spec.slo.interTokenLatency.target": "50"},
        "spec.slo.interTokenLatency.target",
        f"{DURATION} (ms, s, m or h)",
    ),
    "a duration with a space": Bad(
        {"spec.slo.interTokenLatency.target": "50 s"}, "spec.slo.interTokenLatency.target", "e.g. 50ms"
    ),
    "a negative duration": Bad({"spec.slo.queueTime.target": "-1ms"}, "spec.slo.queueTime.target", DURATION),
    "a duration of nothing": Bad(
        {"spec.slo.queueTime.target": "0.0s"}, "spec.slo.queueTime.target", DURATION
    ),
    "a Go duration of two units": Bad({"spec.startup.timeout": "1m30s"}, "spec.startup.timeout", DURATION),
    "a start of a week": Bad({"spec.startup.timeout": "168h"}, "spec.startup.timeout", "must be at most 24h"),
    "a drain of two days": Bad(
        {"spec.shutdown.drainTimeout": "2880m"}, "spec.shutdown.drainTimeout", "at most 24h"
    ),
    "an unknown statistic": Bad(
        {"spec.slo.interTokenLatency": {"target": "50ms", "statistic": "p999"}},
        "spec.slo.interTokenLatency.statistic",
        "p95",
    ),
    "an unknown mode": Bad({"spec.scaling.mode": "auto"}, "spec.scaling.mode", "Auto"),
    "replicas that nobody would read": Bad(
        {"spec.replicas": 3}, "spec.replicas", "spec.scaling.minReplicas and spec.scaling.maxReplicas"
    ),
    "replicas in mode Recommend": Bad(
        {"spec.replicas": 3, "spec.scaling.mode": "Recommend"}, "spec.replicas", "Fixed or External"
    ),
    "more replicas at least than at most": Bad(
        {"spec.scaling": {"minReplicas": 4, "maxReplicas": 2}},
        "spec.scaling.minReplicas",
        "lower minReplicas or raise maxReplicas",
    ),
    "no replica at least": Bad({"spec.scaling.minReplicas": 0}, "spec.scaling.minReplicas", "1"),
    "a lower cap above the upper": Bad(
        {"spec.tuning.numSeqs": {"min": 64, "max": 32}}, "spec.tuning.numSeqs.min", "lower min or raise max"
    ),
    "a cap above the ceiling": Bad(
        {"spec.tuning.numSeqs": {"max": 512}}, "spec.tuning.numSeqs.max", "spec.engine.maxNumSeqs"
    ),
    "a least cap above the ceiling": Bad(
        {"spec.tuning.numSeqs": {"min": 65}, "spec.engine.maxNumSeqs": 64},
        "spec.tuning.numSeqs.min",
        "raise maxNumSeqs",
    ),
    "a budget below one token a sequence": Bad(
        {"spec.engine.maxNumSeqs": 4096}, "spec.engine.maxNumBatchedTokens", "raise it or lower maxNumSeqs"
    ),
    "fewer workers than accelerators": Bad(
        {"spec.accelerator": {**GPU, "count": 4}},
        "spec.engine.tensorParallelSize",
        "must equal spec.accelerator.count",
    ),
    "more workers than accelerators": Bad(
        {"spec.accelerator": GPU, "spec.engine.tensorParallelSize": 2},
        "spec.engine.tensorParallelSize",
        "set both alike",
    ),
    "workers without accelerators": Bad(
        {"spec.engine.tensorParallelSize": 2}, "spec.engine.tensorParallelSize", "set spec.accelerator.count"
    ),
    "two MIG slices": Bad(
        {
            "spec.accelerator": {"resourceName": "nvidia.com/mig-1g.10gb", "count": 2},
            "spec.engine.tensorParallelSize": 2,
        },
        "spec.accelerator.count",
        "set spec.accelerator.count: 1",
    ),
    "a resource without its vendor": Bad(
        {"spec.accelerator": {"resourceName": "gpu", "count": 1}},
        "spec.accelerator.resourceName",
        "e.g. nvidia.com/gpu",
    ),
    "accelerators asked for twice": Bad(
        {"spec.accelerator": GPU, "spec.engine.resources.limits": {"nvidia.com/gpu": 1}},
        "spec.engine.resources",
        "belongs to spec.accelerator",
    ),
    "no quantity": Bad(
        {"spec.engine.resources.limits": {"memory": "32GB"}},
        "spec.engine.resources.limits",
        "e.g. 500m, 2 or 16Gi",
    ),
    "a negative quantity": Bad(
        {"spec.engine.resources.requests": {"cpu": -1}}, "spec.engine.resources.requests", "quantity"
    ),
    "all of the memory and more": Bad(
        {"spec.engine.gpuMemoryUtilization": 90}, "spec.engine.gpuMemoryUtilization", "1"
    ),
    "a model by its bare name": Bad(
        {"spec.model.uri": "meta-llama/Llama-3.1-8B"}, "spec.model.uri", "hf://organisation/name"
    ),
    "a model in an OCI image": Bad(
        {"spec.model.uri": "oci://models/llama:1"}, "spec.model.uri", "pvc://claim/path"
    ),
    "a model behind a path upwards": Bad(
        {"spec.model.uri": "file:///models/../etc"}, "spec.model.uri", "without '..'"
    ),
    "a revision of a directory": Bad(
        {"spec.model": {"uri": "file:///models/tiny", "revision": "main"}},
        "spec.model.revision",
        "hf:// models only",
    ),
    "a token for a volume": Bad(
        {"spec.model": {"uri": "pvc://models/x", "tokenSecretRef": {"name": "t"}}},
        "spec.model.tokenSecretRef",
        "remove it",
    ),
    "a name that would be a flag": Bad(
        {"spec.model.servedNames": ["llama", "--max-num-seqs=1"]},
        "spec.model.servedNames[1]",
        "takes -x for a flag",
    ),
    "two plugins in one word": Bad(
        {"spec.engine.plugins": ["one,two"]}, "spec.engine.plugins[0]", "name of the plugin's entry point"
    ),
    "a token given twice": Bad(
        {
            "spec.model.tokenSecretRef": {"name": "t"},
            "spec.engine.env": [
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "t", "key": "k"}}}
            ],
        },
        "spec.engine.env",
        "remove it from spec.engine.env",
    ),
    "a key in plain text": Bad(
        {"spec.engine.env": [{"name": "VLLM_API_KEY", "value": "example"}]},
        "spec.engine.env",
        "valueFrom.secretKeyRef",
    ),
    "a variable of the operator's": Bad(
        {"spec.engine.env": [{"name": "LLAMASERVER_TUNER_KEYS_DIR", "value": "/"}]},
        "spec.engine.env",
        "remove it",
    ),
    "a folder of old metrics": Bad(
        {"spec.engine.env": [{"name": "PROMETHEUS_MULTIPROC_DIR", "value": "/tmp"}]},
        "spec.engine.env",
        "remove PROMETHEUS_MULTIPROC_DIR",
    ),
    "plugins that cannot be merged": Bad(
        {
            "spec.engine.env": [
                {"name": "VLLM_PLUGINS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
            ]
        },
        "spec.engine.env",
        "write it as value",
    ),
    "a variable with two values": Bad(
        {
            "spec.engine.env": [
                {"name": "A", "value": "b", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
            ]
        },
        "spec.engine.env[0]",
        "either value or valueFrom",
    ),
    "a variable from nowhere": Bad(
        {"spec.engine.env": [{"name": "A", "valueFrom": {}}]},
        "spec.engine.env[0].valueFrom",
        "set exactly one",
    ),
    "a variable twice": Bad(
        {"spec.engine.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "spec.engine.env[1]",
        "",
    ),
    "a variable with a digit in front": Bad(
        {"spec.engine.env": [{"name": "1A", "value": "1"}]}, "spec.engine.env[0].name", "no digit in front"
    ),
    "an image with a space": Bad(
        {"spec.engine.image": "vllm/vllm-openai: v0.32.0"}, "spec.engine.image", "spaces"
    ),
    "an empty image": Bad({"spec.engine.image": ""}, "spec.engine.image", ""),
    "a toleration that compares nothing": Bad(
        {"spec.scheduling.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "spec.scheduling.tolerations[0].value",
        "remove value, or set operator: Equal",
    ),
    "a toleration of every key by value": Bad(
        {"spec.scheduling.tolerations": [{"effect": "NoSchedule"}]},
        "spec.scheduling.tolerations[0].operator",
        "operator must be Exists",
    ),
    "a name that no Service can have": Bad(
        {"metadata.name": "chat.prod"}, "metadata.name", "the Service has the same"
    ),
    "a name that starts with a digit": Bad(
        {"metadata.name": "8b-chat"}, "metadata.name", "start with a letter"
    ),
    "no model": Bad({"spec.model": None}, "spec.model", "equired"),
    **{
        f"the managed flag {spelled}": Bad(
            {"spec.engine.extraArgs": ["--enforce-eager", spelled]}, "spec.engine.extraArgs", entry.cure
        )
        for entry in MANAGED
        for flag in entry.flags
        for spelled in {flag, f"{flag}=1", flag[:2] + flag[2:].replace("-", "_")}
    },
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_api_server_refuses_it_with_field_and_cure(
    bad: Bad, changed: Changed, api_server: Any, namespace: str
) -> None:
    obj = changed({"metadata.namespace": namespace, **bad.changes})
    answer = api_server.create(obj, query="fieldValidation=Strict")
    assert answer.status == 422, answer.body
    # A root rule's error has no path of its own; its message names the field.
    assert bad.field in answer.message
    assert bad.cure in answer.message


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_operator_refuses_it_with_field_and_cure(bad: Bad, changed: Changed) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(changed(bad.changes))
    assert any(
        problem.field.startswith(bad.field) and bad.cure in problem.message
        for problem in caught.value.problems
    ), str(caught.value)


@pytest.mark.parametrize(
    "argument", ["--max-num-se=4", "--max_num_s", "--tensor-par", "--served", "--gpu-mem=0.5"]
)
def test_an_abbreviation_that_vllm_would_take_is_refused(argument: str, changed: Changed) -> None:
    with pytest.raises(InvalidSpec, match="cannot be set here"):
        parse(changed({"spec.engine.extraArgs": [argument, "4"]}))


GOOD = {
    "flags that only begin like managed ones": {
        "spec.engine.extraArgs": [
            "--model-impl=auto",
            "--config-format",
            "hf",
            "--max-num-partial-prefills=2",
            "-O3",
        ]
    },
    "a value that looks like a flag's": {
        "spec.engine.extraArgs": ["--chat-template", "max-num-seqs", "-1", "-"]
    },
    "a pipeline for the rest of the accelerators": {
        "spec.accelerator": {**GPU, "count": 8},
        "spec.engine.tensorParallelSize": 4,
        "spec.engine.extraArgs": ["-pp", "2"],
    },
    "data parallelism for the rest of the accelerators": {
        "spec.accelerator": {**GPU, "count": 8},
        "spec.engine.extraArgs": ["--data_parallel_size=8"],
    },
    "zero replicas": {"spec.replicas": 0, "spec.scaling.mode": "Fixed"},
    "bounds kept for later beside a fixed number": {
        "spec.replicas": 9,
        "spec.scaling": {"mode": "Fixed", "minReplicas": 1, "maxReplicas": 4},
    },
    "whole quantities": {
        "spec.engine.resources.limits": {"cpu": 8, "memory": "48Gi", "ephemeral-storage": "1e9"}
    },
    "all of the memory": {"spec.engine.gpuMemoryUtilization": 1},
    "a toleration of everything": {"spec.scheduling.tolerations": [{"operator": "Exists"}]},
    "plugins and a path of the user's": {
        "spec.engine.env": [
            {"name": "VLLM_PLUGINS", "value": "mine"},
            {"name": "PYTHONPATH", "value": "/opt/mine"},
        ]
    },
    "a day": {"spec.startup.timeout": "24h", "spec.shutdown.drainTimeout": "86400s"},
    "the longest name": {"metadata.name": "a" * 63},
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_what_is_right_is_taken_by_both(
    changes: Object, changed: Changed, api_server: Any, namespace: str
) -> None:
    obj = changed({"metadata.namespace": namespace, **changes})
    answer = api_server.create(obj, query="fieldValidation=Strict")
    assert answer.status == 201, answer.message
    assert parse(answer.body).spec == parse(obj).spec


@pytest.mark.parametrize(
    ("extra", "count", "size", "taken"),
    [
        (["-pp", "2"], 4, 2, True),
        (["-pp", "2"], 4, 4, False),
        (["--pipeline-parallel-size=2", "-dp", "2"], 8, 2, True),
        (["-dp", "4", "-dpl", "2"], 4, 2, True),
        (["-dp"], 4, 2, True),
    ],
)
def test_the_product_of_all_parallelism_is_checked_where_cel_only_sees_that_there_is_some(
    extra: list[str], count: int, size: int, taken: bool, changed: Changed
) -> None:
    obj = changed(
        {
            "spec.accelerator": {**GPU, "count": count},
            "spec.engine.tensorParallelSize": size,
            "spec.engine.extraArgs": extra,
        }
    )
    if taken:
        parse(obj)
    else:
        with pytest.raises(InvalidSpec, match="tensorParallelSize"):
            parse(obj)

"""What is refused, and in which words: by a real API server from the CRD, and again by `parse`, for
resources that were stored under an older schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llamaserver.api import InvalidSpec, parse
from llamaserver.api.crd import crd
from llamaserver.api.offloading import OFFLOADING_RULES
from llamaserver.api.release import KV_OFFLOADING_SINCE, release_of
from specs import BAD, GOOD, LATE, Bad, Object
from specs.fields import leaves
from specs.mistake import GPU

Changed = Callable[..., Object]


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


@pytest.mark.parametrize("bad", LATE.values(), ids=LATE)
def test_the_api_server_takes_what_only_the_operator_can_tell(
    bad: Bad, changed: Changed, api_server: Any, namespace: str
) -> None:
    obj = changed({"metadata.namespace": namespace, **bad.changes})
    answer = api_server.create(obj, query="fieldValidation=Strict")
    assert answer.status == 201, answer.message


@pytest.mark.parametrize("bad", [*BAD.values(), *LATE.values()], ids=[*BAD, *LATE])
def test_the_operator_refuses_it_with_field_and_cure(bad: Bad, changed: Changed) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(changed(bad.changes))
    assert any(
        problem.field.startswith(bad.field) and bad.cure in problem.message
        for problem in caught.value.problems
    ), str(caught.value)


def written(value: Any, path: str) -> Iterator[str]:
    """The paths of everything in a value."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from written(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from written(inner, f"{path}[]")


def is_about(bad: Bad, leaf: str) -> bool:
    """Whether a mistake is in this field: the message points at it, or at what holds it and is written."""
    points_at = re.sub(r"\[\d+\]", "[]", bad.field)
    if points_at in (leaf, f"{leaf}[]") or points_at.startswith(f"{leaf}."):
        return True
    return leaf.startswith((f"{points_at}.", f"{points_at}[")) and any(
        leaf in written(value, path) for path, value in bad.changes.items()
    )


def test_every_field_has_a_mistake_that_is_refused() -> None:
    """A field that is new is either never wrong, which none is, or has its mistake here."""
    spec = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    mistakes = (*BAD.values(), *LATE.values())
    assert [leaf for leaf in leaves(spec, "spec") if not any(is_about(bad, leaf) for bad in mistakes)] == []


@pytest.mark.parametrize(
    ("changes", "field", "cure"),
    [
        (
            {"spec.podTemplate.spec.containers": [{"name": "proxy", "image": "p", "cmd": ["x"]}]},
            "spec.podTemplate.spec.containers[0].cmd",
            "did you mean command?",
        ),
        (
            {"spec.podTemplate.spec.hostNetwork": True},
            "spec.podTemplate.spec.hostNetwork",
            "the fields here are",
        ),
    ],
)
def test_a_field_that_pods_are_not_given_is_refused_by_name(
    changes: Object, field: str, cure: str, changed: Changed, api_server: Any, namespace: str
) -> None:
    obj = changed({"metadata.namespace": namespace, **changes})
    answer = api_server.create(obj, query="fieldValidation=Strict")
    assert (answer.status, field in answer.message) == (400, True)
    with pytest.raises(InvalidSpec) as caught:
        parse(obj)
    assert (caught.value.field, cure in caught.value.message) == (field, True)


@pytest.mark.parametrize(
    "argument", ["--max-num-se=4", "--max_num_s", "--tensor-par", "--served", "--gpu-mem=0.5"]
)
def test_an_abbreviation_that_vllm_would_take_is_refused(argument: str, changed: Changed) -> None:
    with pytest.raises(InvalidSpec, match="cannot be set here"):
        parse(changed({"spec.engine.extraArgs": [argument, "4"]}))


def test_a_spec_that_no_annotation_can_hold_is_refused(changed: Changed) -> None:
    sidecar = {"name": "p", "image": "p", "args": ["x" * 8000] * 17}
    with pytest.raises(InvalidSpec, match=r"larger than 128 KiB: shorten spec\.podTemplate"):
        parse(changed({"spec.podTemplate.spec.containers": [sidecar]}))


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


SHM = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "40Gi"}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec.engine.resources.requests": {"memory": "32Gi"}}, "spec.engine.resources.requests"),
        (
            {"spec.podTemplate.spec.volumes": [{"name": "v", "emptyDir": {}}, SHM]},
            "spec.podTemplate.spec.volumes[1]",
        ),
    ],
)
def test_offloading_needs_its_memory_for_each_data_parallel_rank(
    changes: Object, field: str, changed: Changed
) -> None:
    """CEL sees neither how many engines a pod has, nor into a volume's source."""
    two = {
        "spec.accelerator": {**GPU, "count": 2},
        "spec.engine.kvOffloading": {"size": "20Gi"},
        "spec.engine.resources.requests": {"memory": "64Gi"},
        "spec.engine.extraArgs": ["-dp", "2"],
    }
    parse(changed(two))
    with pytest.raises(InvalidSpec, match="for each engine of the pod") as caught:
        parse(changed({**two, **changes}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("tag", "taken"), [("v0.14.0", True), ("v0.31.2", True), ("v0.32.0", False), ("latest", False)]
)
def test_a_small_shm_is_refused_only_where_the_cache_is_known_to_lie_in_it(
    tag: str, taken: bool, changed: Changed
) -> None:
    small = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    obj = changed(
        {
            "spec.accelerator": GPU,
            "spec.engine.image": f"vllm/vllm-openai:{tag}",
            "spec.engine.kvOffloading": {"size": "20Gi"},
            "spec.engine.resources.requests": {"memory": "64Gi"},
            "spec.podTemplate.spec.volumes": [small],
        }
    )
    if taken:
        parse(obj)
    else:
        with pytest.raises(InvalidSpec, match="which lies in this volume"):
            parse(obj)


def test_whether_an_image_is_too_old_is_read_alike_in_both_places() -> None:
    rule = next(rule["rule"] for rule in OFFLOADING_RULES if "image" in rule["rule"])
    older = re.compile(re.findall(r"matches\('(.+)'\)", rule)[0])
    for minor in range(40):
        for tag in (f"v0.{minor}.1", f"0.{minor}", f"v0.{minor}.0-cu129", f"v1.{minor}"):
            image = f"registry:5000/vllm/vllm-openai:{tag}"
            assert bool(older.search(image)) is not release_of(image).has(KV_OFFLOADING_SINCE), image

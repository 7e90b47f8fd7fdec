"""The init container that has the model in the cache before the engine starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.desired import BuildSettings, TunerDelivery

Object = dict[str, Any]
Make = Callable[..., Object]

CACHE = {"spec.model.cache": {"persistentVolumeClaim": {"claimName": "weights"}}}
COMMIT = "0123456789" * 4


def named(found: Object, name: str) -> Object:
    (container,) = (one for one in found["initContainers"] if one["name"] == name)
    return dict(container)


def downloads(found: Object) -> bool:
    return any(container["name"] == "model-download" for container in found.get("initContainers", []))


def test_with_a_claim_the_model_is_downloaded_to_it_and_the_engine_is_led_there(pod: Make) -> None:
    found = pod(CACHE | {"spec.model.revision": COMMIT})
    args = named(found, "model-download")["args"]
    place = "/mnt/model/meta-llama/Llama-3.1-8B-Instruct"
    assert args[:2] == ["--repository=meta-llama/Llama-3.1-8B-Instruct", f"--revision={COMMIT}"]
    assert f"--link={place}" in args
    assert found["containers"][0]["args"][0] == place
    assert not [word for word in found["containers"][0]["args"] if word.startswith("--revision")]


def test_without_a_claim_the_engine_downloads_by_itself(pod: Make) -> None:
    found = pod({"spec.model.revision": COMMIT})
    assert not downloads(found)
    assert found["containers"][0]["args"][0] == "meta-llama/Llama-3.1-8B-Instruct"
    assert f"--revision={COMMIT}" in found["containers"][0]["args"]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.model.uri": "pvc://weights/llama"},
        {"spec.model.uri": "oci://registry/llama:1"},
        {"spec.engine.env": [{"name": "HF_HOME", "value": "/mine"}]},
        {"spec.engine.env": [{"name": "VLLM_USE_MODELSCOPE", "value": "True"}]},
        {"spec.engine.extraArgs": ["--download_dir=/mine"]},
        {"spec.engine.extraArgs": ["--load-format", "runai_streamer"]},
    ],
)
def test_what_comes_from_elsewhere_or_goes_elsewhere_is_the_engines_own_matter(
    changes: Object, pod: Make
) -> None:
    assert not downloads(pod(CACHE | changes))


def test_it_is_the_engines_image_user_and_surroundings_without_its_accelerators_and_its_key(
    pod: Make,
) -> None:
    found = pod(
        CACHE
        | {
            "spec.accelerator": {"resourceName": "nvidia.com/gpu", "count": 1},
            "spec.engine.resources": {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}},
            "spec.engine.env": [
                {"name": "HF_ENDPOINT", "value": "https://mirror.example"},
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            ],
            "spec.engine.apiKeySecretRef": {"name": "key"},
            "spec.model.tokenSecretRef": {"name": "token"},
            "spec.podTemplate": {
                "spec": {
                    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
                    "containers": [
                        {"name": "vllm", "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}]}
                    ],
                }
            },
        }
    )
    made, engine = named(found, "model-download"), found["containers"][0]
    assert made["image"] == engine["image"]
    assert made["securityContext"] == engine["securityContext"]
    assert made["resources"] == {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}}
    entries = {entry["name"]: entry for entry in made["env"]}
    assert len(entries) == len(made["env"])
    assert entries["NVIDIA_VISIBLE_DEVICES"]["value"] == "void", (
        "or a CUDA image is given every GPU of the node"
    )
    assert entries["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "token", "key": "HF_TOKEN"}}
    assert entries["HF_ENDPOINT"]["value"] == "https://mirror.example"
    assert entries["PYTHONPATH"]["value"].startswith("/opt/llamaserver/tuner")
    assert "VLLM_API_KEY" not in entries
    assert {"name": "ca", "mountPath": "/etc/ca"} in made["volumeMounts"]


def test_the_link_is_written_by_it_and_read_by_the_engine(pod: Make) -> None:
    found = pod(CACHE)
    mounts = [
        next(mount for mount in container["volumeMounts"] if mount["mountPath"] == "/mnt/model")
        for container in (named(found, "model-download"), found["containers"][0])
    ]
    assert [mount.get("readOnly", False) for mount in mounts] == [False, True]


@pytest.mark.parametrize("delivery", list(TunerDelivery))
def test_it_comes_after_the_tuner_and_before_the_users_own(delivery: TunerDelivery, pod: Make) -> None:
    users = {"spec": {"initContainers": [{"name": "convert", "image": "convert:1"}]}}
    settings = BuildSettings("llamaserver/tuner:0.1.0", delivery)
    found = pod(CACHE | {"spec.podTemplate": users}, settings=settings)
    names = [container["name"] for container in found["initContainers"]]
    assert names == ["tuner", "model-download", "convert"][-len(names) :]
    assert named(found, "model-download")["volumeMounts"] != []


def test_a_rollout_is_given_the_time_of_a_download(built: Make) -> None:
    with_, without = (
        built(changes)["Deployment"]["spec"]["progressDeadlineSeconds"] for changes in (CACHE, {})
    )
    assert with_ - without == 6 * 3600

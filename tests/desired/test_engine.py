"""The engine's container: arguments, environment, probes, resources, security."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api import parse
from llamaserver.api.release import release_of
from llamaserver.desired.arguments import LATENCY_BOUNDARIES_MS
from llamaserver.desired.environment import environment

Object = dict[str, Any]
Make = Callable[..., Object]

OWN_USER = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared")
IMAGES_USER = (
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
)
"""Names of device plugins, by whether the engine can run as the operator's user there."""
RESOURCE = Path(__file__).resolve().parents[2] / "docs" / "resource.md"
VLLM_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
"""The boundaries that vLLM has by itself, in seconds."""
GPU = {"resourceName": "nvidia.com/gpu", "count": 1}


def env(container: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "(reference)") for entry in container["env"]}


def volume(spec: Object, name: str) -> Object:
    (found,) = (one for one in spec["volumes"] if one["name"] == name)
    return dict(found)


class TestArguments:
    """What `vllm serve` is started with."""

    def test_the_model_comes_first_and_the_users_own_arguments_last(self, engine: Make) -> None:
        args = engine({"spec.engine.extraArgs": ["--enforce-eager"]})["args"]
        assert args[0] == "meta-llama/Llama-3.1-8B-Instruct"
        assert args[-1] == "--enforce-eager"

    def test_no_command_replaces_the_images_entrypoint(self, engine: Make) -> None:
        assert "command" not in engine()

    @pytest.mark.parametrize(
        ("changes", "argument"),
        [
            ({"spec.engine.maxNumSeqs": 64}, "--max-num-seqs=64"),
            ({"spec.engine.maxNumBatchedTokens": 512}, "--max-num-batched-tokens=512"),
            ({"spec.engine.maxModelLen": 4096}, "--max-model-len=4096"),
            ({"spec.engine.gpuMemoryUtilization": 0.9}, "--gpu-memory-utilization=0.9"),
            ({"spec.engine.gpuMemoryUtilization": 1}, "--gpu-memory-utilization=1"),
            ({"spec.model.revision": "0e9e39f"}, "--revision=0e9e39f"),
            ({"spec.shutdown.drainTimeout": "90s"}, "--shutdown-timeout=90"),
            ({"spec.shutdown.drainTimeout": "1500ms"}, "--shutdown-timeout=2"),
        ],
    )
    def test_a_field_becomes_its_flag(self, changes: Object, argument: str, engine: Make) -> None:
        assert argument in engine(changes)["args"]

    def test_all_served_names_are_given_the_first_first(self, engine: Make) -> None:
        args = engine({"spec.model.servedNames": ["llama", "default"]})["args"]
        start = args.index("--served-model-name")
        assert args[start + 1 : start + 3] == ["llama", "default"]

    def test_an_access_log_of_the_users_is_left_alone(self, engine: Make) -> None:
        args = engine({"spec.engine.extraArgs": ["--disable_access_log_for_endpoints=/health"]})["args"]
        assert sum("log" in argument for argument in args) == 1

    @pytest.mark.parametrize(
        ("tag", "drains", "quiet", "fine"),
        [
            ("v0.15.1", False, False, False),
            ("v0.16.0", False, True, False),
            ("v0.17.2-cu128", False, True, False),
            ("v0.18.0", True, True, False),
            ("v0.31.1", True, True, False),
            ("0.32.0@sha256:" + "0" * 64, True, True, True),
            ("v0.33.0", True, True, True),
            ("latest", True, True, False),
            ("dev", True, True, False),
        ],
    )
    def test_only_flags_that_the_release_knows_are_given(
        self, tag: str, drains: bool, quiet: bool, fine: bool, engine: Make
    ) -> None:
        args = " ".join(engine({"spec.engine.image": f"registry:5000/vllm/vllm-openai:{tag}"})["args"])
        assert ("--shutdown-timeout" in args) is drains
        assert ("--disable-access-log-for-endpoints" in args) is quiet
        assert ("--custom-histogram-buckets" in args) is fine

    def test_boundaries_of_the_users_are_left_alone(self, engine: Make) -> None:
        own = '--custom_histogram_buckets={"inter_token_latency":[0.05]}'
        args = engine({"spec.engine.extraArgs": [own]})["args"]
        assert [argument for argument in args if "histogram" in argument] == [own]

    @pytest.mark.parametrize(
        "changes",
        [
            {"spec.slo": {"interTokenLatency": {"target": "33ms", "statistic": "p99"}}},
            {"spec.metrics.source": "Prometheus"},
        ],
    )
    def test_boundaries_stay_whatever_takes_effect_without_a_rollout(
        self, changes: Object, engine: Make
    ) -> None:
        assert engine(changes)["args"] == engine()["args"]

    def test_boundaries_are_near_any_objective_and_keep_those_of_vllm(self) -> None:
        edges = LATENCY_BOUNDARIES_MS
        near = [(low, high) for low, high in pairwise(edges) if 5 <= low < 500]
        assert all(low < high <= 1.26 * low for low, high in near)
        assert {1000 * edge for edge in VLLM_S} <= set(edges)
        assert {5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 75, 80, 100, 150, 200} <= set(edges)

    @pytest.mark.parametrize(
        ("image", "version"),
        [
            ("vllm/vllm-openai:v0.32.0", (0, 32)),
            ("host:5000/vllm", None),
            ("host:5000/vllm:0.9", (0, 9)),
            ("vllm:25.10-py3", (25, 10)),
            ("vllm@sha256:" + "1" * 64, None),
            ("vllm:latest", None),
            ("vllm:rocm6.4-v0.11", None),
        ],
    )
    def test_a_release_is_read_from_the_tag_alone(self, image: str, version: tuple[int, int] | None) -> None:
        assert release_of(image).version == version


class TestEnvironment:
    """Variables: ours, the user's, and the two that are merged."""

    def test_the_tuner_is_found_and_allowed(self, engine: Make) -> None:
        found = env(engine())
        assert found["PYTHONPATH"] == "/opt/llamaserver/tuner"
        assert found["VLLM_PLUGINS"] == (
            "llamaserver_tuner_engine,llamaserver_tuner_http,llamaserver_tuner_stats"
        )
        assert found["LLAMASERVER_TUNER_KEYS_DIR"] == "/etc/llamaserver/keys"

    def test_the_engine_knows_its_pods_uid_for_which_changes_are_signed(self, engine: Make) -> None:
        (entry,) = (entry for entry in engine()["env"] if entry["name"] == "LLAMASERVER_POD_UID")
        assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}

    def test_the_users_plugins_and_path_are_added_once(self, engine: Make) -> None:
        found = env(
            engine(
                {
                    "spec.engine.plugins": ["mine", "lora_filesystem_resolver"],
                    "spec.engine.env": [
                        {"name": "VLLM_PLUGINS", "value": "theirs,mine"},
                        {"name": "PYTHONPATH", "value": "/opt/mine:/opt/llamaserver/tuner"},
                        {"name": "VLLM_LORA_RESOLVER_CACHE_DIR", "value": "/lora"},
                        {"name": "VLLM_LORA_RESOLVER_HF_REPO_LIST", "value": "org/lora"},
                    ],
                }
            )
        )
        assert found["PYTHONPATH"] == "/opt/llamaserver/tuner:/opt/mine"
        assert found["VLLM_PLUGINS"].split(",")[3:] == [
            "mine",
            "lora_filesystem_resolver",
            "lora_hf_hub_resolver",
            "theirs",
        ]

    def test_a_variable_of_the_users_wins_and_stands_once(self, engine: Make) -> None:
        entries = engine({"spec.engine.env": [{"name": "HF_HOME", "value": "/mine"}]})["env"]
        assert [entry["value"] for entry in entries if entry["name"] == "HF_HOME"] == ["/mine"]

    @given(names=st.lists(st.sampled_from(["A", "HOME", "HF_HOME", "PYTHONPATH", "USER"]), unique=True))
    def test_no_variable_is_there_twice_or_lost(self, names: list[str]) -> None:
        server = parse(
            {
                "apiVersion": "llamaserver.dev/v1alpha1",
                "kind": "LlamaServer",
                "metadata": {"name": "x"},
                "spec": {
                    "model": {"uri": "hf://a/b"},
                    "engine": {"image": "i", "env": [{"name": name, "value": "v"} for name in names]},
                },
            }
        )
        found = [entry["name"] for entry in environment(server.spec)]
        assert len(found) == len(set(found))
        assert set(names) <= set(found)

    def test_every_cache_is_on_a_writable_mount(self, engine: Make) -> None:
        container = engine()
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        for name, value in env(container).items():
            if name.endswith(("HOME", "ROOT", "CACHE_DIR")):
                assert any(value == path or value.startswith(f"{path}/") for path in writable), name

    def test_the_token_is_a_reference_to_its_secret(self, engine: Make) -> None:
        entries = engine({"spec.model.tokenSecretRef": {"name": "hf-token"}})["env"]
        (token,) = (entry for entry in entries if entry["name"] == "HF_TOKEN")
        assert token["valueFrom"] == {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}


class TestModels:
    """Where the weights are."""

    def test_a_volume_is_mounted_read_only(self, pod: Make) -> None:
        spec = pod({"spec.model.uri": "pvc://models/org/llama"})
        assert spec["containers"][0]["args"][0] == "/mnt/model/org/llama"
        assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in spec["containers"][0][
            "volumeMounts"
        ]
        claims = [volume["persistentVolumeClaim"] for volume in spec["volumes"] if volume["name"] == "model"]
        assert claims == [{"claimName": "models", "readOnly": True}]

    def test_a_directory_of_the_image_is_named_by_its_path(self, engine: Make) -> None:
        assert engine({"spec.model.uri": "file:///models/tiny"})["args"][0] == "/models/tiny"

    def test_the_cache_is_the_users_claim(self, pod: Make) -> None:
        spec = pod({"spec.model.cache.persistentVolumeClaim.claimName": "models"})
        (cache,) = (volume for volume in spec["volumes"] if volume["name"] == "cache")
        assert cache == {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}


class TestResources:
    """Accelerators, shared memory, users."""

    def test_accelerators_are_requested_and_limited_alike(self, engine: Make) -> None:
        changes = {"spec.accelerator": GPU, "spec.engine.resources.requests": {"cpu": 8}}
        assert engine(changes)["resources"] == {
            "requests": {"cpu": 8, "nvidia.com/gpu": 1},
            "limits": {"nvidia.com/gpu": 1},
        }

    @pytest.mark.parametrize("workers", [1, 2, 8])
    def test_shared_memory_grows_with_the_workers(self, workers: int, pod: Make) -> None:
        changes = {} if workers == 1 else {"spec.engine.tensorParallelSize": workers}
        spec = pod({**changes, **({"spec.accelerator": {**GPU, "count": workers}} if workers > 1 else {})})
        (shm,) = (volume for volume in spec["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{2 * workers}Gi"}
        mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        assert "/dev/shm" in mounts, "the runtime's own 64 MB do not suffice to start"

    @pytest.mark.parametrize(
        ("extra", "count", "gib"),
        [(["-pp", "2"], 4, 8), (["--pipeline-parallel-size=2", "-dp", "2"], 8, 16), (["-dp"], 4, 8)],
    )
    def test_all_kinds_of_parallelism_share_memory(
        self, extra: list[str], count: int, gib: int, pod: Make
    ) -> None:
        changes = {"spec.engine.tensorParallelSize": 2, "spec.engine.extraArgs": extra}
        spec = pod({**changes, "spec.accelerator": {**GPU, "count": count}})
        (shm,) = (volume for volume in spec["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"]["sizeLimit"] == f"{gib}Gi"

    def test_accelerators_by_a_claim_are_claimed_by_the_engine(self, pod: Make) -> None:
        claimed = {"resourceClaimTemplateName": "gpu", "count": 1}
        spec = pod({"spec.accelerator": claimed, "spec.engine.resources.requests": {"cpu": 4}})
        assert spec["resourceClaims"] == [{"name": "accelerator", "resourceClaimTemplateName": "gpu"}]
        resources = spec["containers"][0]["resources"]
        assert resources == {"requests": {"cpu": 4}, "claims": [{"name": "accelerator"}]}

    @pytest.mark.parametrize("name", [*OWN_USER, *IMAGES_USER])
    @pytest.mark.parametrize("count", [1, 4])
    def test_every_accelerator_is_asked_for_by_its_name(self, name: str, count: int, pod: Make) -> None:
        """As many as `count`, limited alike, and /dev/shm for as many workers as share the model."""
        if name.startswith("nvidia.com/mig-") and count > 1:
            return
        accelerator = {"resourceName": name, "count": count}
        spec = pod({"spec.accelerator": accelerator, "spec.engine.tensorParallelSize": count})
        engine = spec["containers"][0]
        assert engine["resources"] == {"requests": {name: count}, "limits": {name: count}}
        assert f"--tensor-parallel-size={count}" in engine["args"]
        assert volume(spec, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{2 * count}Gi"}
        asked = [one for one in spec.get("initContainers", ()) if name in str(one.get("resources"))]
        assert asked == [], "an init container that asked for one would keep others waiting"

    def test_the_tpu_of_the_documentation_goes_to_its_nodes(self, pod: Make) -> None:
        blocks = re.findall(r"^```yaml\n(.*?)^```", RESOURCE.read_text(), re.M | re.S)
        (shown,) = (yaml.safe_load(block) for block in blocks if "google.com/tpu" in block)
        spec = pod({f"spec.{group}": fields for group, fields in shown.items()})
        assert spec["containers"][0]["resources"]["limits"] == {"google.com/tpu": 8}
        assert spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"

    @pytest.mark.parametrize(
        ("accelerator", "user", "read_only"),
        [
            (None, 65532, True),
            *(({"resourceName": name, "count": 1}, 65532, False) for name in OWN_USER),
            *(({"resourceName": name, "count": 1}, None, False) for name in IMAGES_USER),
            ({"resourceClaimTemplateName": "gpu", "count": 1}, None, False),
        ],
    )
    def test_the_user_fits_the_devices(
        self, accelerator: Object | None, user: int | None, read_only: bool, pod: Make
    ) -> None:
        spec = pod({"spec.accelerator": accelerator} if accelerator else {})
        assert spec["securityContext"].get("runAsUser") == user
        container = spec["containers"][0]["securityContext"]
        assert container["readOnlyRootFilesystem"] is read_only
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert container["allowPrivilegeEscalation"] is False
        assert spec["securityContext"]["fsGroup"] == 65532, "claims are written to whoever the engine is"

    @pytest.mark.parametrize("name", IMAGES_USER)
    def test_what_a_vendor_asks_for_can_be_added(self, name: str, pod: Make) -> None:
        """Groups of device nodes, huge pages, a runtime, a plugin that is the platform, a capability."""
        own = {"capabilities": {"drop": ["ALL"], "add": ["SYS_NICE"]}}
        spec = pod(
            {
                "spec.accelerator": {"resourceName": name, "count": 1},
                "spec.engine.resources": {"limits": {"hugepages-2Mi": "95000Mi", "memory": "409Gi"}},
                "spec.engine.plugins": ["hpu", "01.hpu_custom_utils"],
                "spec.scheduling.runtimeClassName": "habana",
                "spec.scheduling.nodeSelector": {"cloud.google.com/gke-tpu-topology": "2x4"},
                "spec.podTemplate.spec.securityContext": {"supplementalGroups": [44, 109]},
                "spec.podTemplate.spec.containers": [{"name": "vllm", "securityContext": own}],
            }
        )
        engine = spec["containers"][0]
        assert engine["resources"]["limits"] == {"hugepages-2Mi": "95000Mi", "memory": "409Gi", name: 1}
        assert {"hpu", "01.hpu_custom_utils"} <= set(env(engine)["VLLM_PLUGINS"].split(","))
        assert spec["runtimeClassName"] == "habana"
        assert spec["nodeSelector"] == {"cloud.google.com/gke-tpu-topology": "2x4"}
        assert spec["securityContext"]["supplementalGroups"] == [44, 109]
        assert engine["securityContext"]["capabilities"]["add"] == ["SYS_NICE"]

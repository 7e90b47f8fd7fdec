"""The init container that downloads an hf:// model to the cache's claim, before the engine's time starts.

It runs the tuner's files, which need nothing but Python, and is the engine's container otherwise: the same
image, which has a Python and is pulled anyway, the same user, for whom the files must be readable and the
cache writable, the same variables (token, mirror, proxies) and the same mounts (certificates). So it is made
from that container when everything is merged into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from llamaserver.api.names import DOWNLOAD_CONTAINER, ENGINE_CONTAINER, ENGINE_PORT
from llamaserver.api.source import parse_uri
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.weights import is_downloaded_first
from llamaserver.desired.environment import CACHE_DIR
from llamaserver.desired.tls import TLS_VOLUME
from llamaserver.desired.weights import MODEL_MOUNT, model_argument

DOWNLOAD_ALLOWANCE_S: Final = 6 * 3600
"""A terabyte at 50 MB/s: longer is no progress."""

_OF_THE_ENGINE: Final = ("image", "imagePullPolicy", "envFrom", "terminationMessagePolicy", "securityContext")
_NOT_OF_THE_ENGINE: Final = ("VLLM_API_KEY", "NVIDIA_VISIBLE_DEVICES")
_NO_ACCELERATORS: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""CUDA images set it to `all`, by which NVIDIA's runtime gives a container that asked for none every GPU of
the node, and refuses to start it where the driver is too old for the image.
"""


def with_download(template: Mapping[str, Any], spec: LlamaServerSpec) -> dict[str, Any]:
    """The pod template with the download, after the tuner, whose files it is part of, and before the user's
    own init containers; unchanged where there is nothing to download first.
    """
    if not is_downloaded_first(spec):
        return dict(template)
    pod = template["spec"]
    engine = next(container for container in pod["containers"] if container["name"] == ENGINE_CONTAINER)
    others = pod.get("initContainers", [])
    at = next((index + 1 for index, container in enumerate(others) if container["name"] == "tuner"), 0)
    containers = [*others[:at], _download(engine, spec), *others[at:]]
    return {**template, "spec": {**pod, "initContainers": containers}}


def _download(engine: Mapping[str, Any], spec: LlamaServerSpec) -> dict[str, Any]:
    # What the engine asks for anyway costs a pod nothing, and meets the quota that the engine meets.
    resources = {"resources": spec.engine.resources.to_dict()} if spec.engine.resources else {}
    return {
        "name": DOWNLOAD_CONTAINER,
        "command": ["python3", "-m", "llamaserver_tuner.download"],
        "args": _arguments(spec),
        **{key: deepcopy(engine[key]) for key in _OF_THE_ENGINE if key in engine},
        "env": [
            *(deepcopy(entry) for entry in engine["env"] if entry["name"] not in _NOT_OF_THE_ENGINE),
            dict(_NO_ACCELERATORS),
        ],
        **resources,
        # It answers by plain HTTP how far it is, and has no use for the engine's key. The variable by which a
        # missing certificate is told stays: better before hours of a download than after.
        "volumeMounts": [_writable(mount) for mount in engine["volumeMounts"] if mount["name"] != TLS_VOLUME],
    }


def _arguments(spec: LlamaServerSpec) -> list[str]:
    revision = [f"--revision={spec.model.revision}"] if spec.model.revision is not None else []
    return [
        f"--repository={parse_uri(spec.model.uri).path}",
        *revision,
        f"--cache={CACHE_DIR}",
        f"--link={model_argument(spec)}",
        f"--port={ENGINE_PORT}",
    ]


def _writable(mount: dict[str, Any]) -> dict[str, Any]:
    """The link to the model is made here, and only read by the engine."""
    reads = mount["mountPath"] != MODEL_MOUNT
    return {key: value for key, value in mount.items() if reads or key != "readOnly"}

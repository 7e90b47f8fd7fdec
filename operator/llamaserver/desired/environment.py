"""The environment of the engine's container: the tuner's door, writable places, the user's own variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from llamaserver.api.engine import EnvVar
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.desired.tls import tls_environment

TUNER_DIR: Final = "/opt/llamaserver/tuner"
KEYS_DIR: Final = "/etc/llamaserver/keys"
CACHE_DIR: Final = "/var/cache/llamaserver"
HOME_DIR: Final = "/tmp"  # noqa: S108 - a volume of the pod's own
USER_NAME: Final = "llamaserver"

TUNER_PLUGINS: Final = ("llamaserver_tuner_engine", "llamaserver_tuner_http", "llamaserver_tuner_stats")
LORA_RESOLVERS: Final = {
    "VLLM_LORA_RESOLVER_CACHE_DIR": "lora_filesystem_resolver",
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": "lora_hf_hub_resolver",
}
"""vLLM's built-in plugins, by the variable that puts each to use (vllm/plugins/lora_resolvers)."""

EnvEntry = dict[str, Any]
"""One item of a container's `env`."""


def environment(spec: LlamaServerSpec) -> list[EnvEntry]:
    """Our variables, then the user's. The user's win, save the two that are merged: VLLM_PLUGINS and
    PYTHONPATH.
    """
    given = {variable.name: variable for variable in spec.engine.env or ()}
    merged = {
        "PYTHONPATH": _joined(":", (TUNER_DIR,), _words(given, "PYTHONPATH", ":")),
        "VLLM_PLUGINS": _joined(",", _plugins(spec, given), _words(given, "VLLM_PLUGINS", ",")),
    }
    ours = [*_fixed(merged), *_secrets(spec), *tls_environment(spec)]
    users = [variable.to_dict() for name, variable in given.items() if name not in merged]
    return [*(entry for entry in ours if entry["name"] not in given or entry["name"] in merged), *users]


def _fixed(merged: dict[str, str]) -> Iterator[EnvEntry]:
    yield from ({"name": name, "value": value} for name, value in merged.items())
    yield {"name": "LLAMASERVER_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    yield {"name": "LLAMASERVER_TUNER_KEYS_DIR", "value": KEYS_DIR}
    # The image's own home and caches belong to root, and the user id has no entry in its passwd file.
    yield {"name": "HOME", "value": HOME_DIR}
    yield {"name": "USER", "value": USER_NAME}
    yield {"name": "HF_HOME", "value": f"{CACHE_DIR}/huggingface"}
    yield {"name": "VLLM_CACHE_ROOT", "value": f"{CACHE_DIR}/vllm"}
    yield {"name": "TORCHINDUCTOR_CACHE_DIR", "value": f"{CACHE_DIR}/torchinductor"}
    yield {"name": "TRITON_CACHE_DIR", "value": f"{CACHE_DIR}/triton"}


def _secrets(spec: LlamaServerSpec) -> Iterator[EnvEntry]:
    if (ref := spec.model.token_secret_ref) is not None:
        yield {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": ref.to_dict()}}
    if (key := spec.engine.api_key_secret_ref) is not None:
        yield {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": key.to_dict()}}


def _plugins(spec: LlamaServerSpec, given: dict[str, EnvVar]) -> tuple[str, ...]:
    """VLLM_PLUGINS is one allowlist for every kind of plugin: what is not named does not load."""
    resolvers = (plugin for variable, plugin in LORA_RESOLVERS.items() if variable in given)
    return (*TUNER_PLUGINS, *(spec.engine.plugins or ()), *resolvers)


def _words(given: dict[str, EnvVar], name: str, separator: str) -> list[str]:
    variable = given.get(name)
    value = (variable.value if variable else None) or ""
    return [word for word in value.split(separator) if word]


def _joined(separator: str, *parts: Iterable[str]) -> str:
    """All words once, in the order in which they first appear."""
    return separator.join(dict.fromkeys(word for part in parts for word in part))

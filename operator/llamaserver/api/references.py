"""Which objects a spec names that have to exist before a pod can have its volumes, by the fields that name
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llamaserver.api.source import Scheme, parse_uri
from llamaserver.api.spec import LlamaServerSpec


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim that the pods mount. `field` names it."""

    field: str
    name: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class TextKey:
    """A key of a ConfigMap that the pods mount. `field` is the group of the two fields that name it."""

    field: str
    name: str
    key: str


def claims_of(spec: LlamaServerSpec) -> tuple[Claim, ...]:
    """Every mount of a claim, in the order of the spec's fields."""
    return tuple(_claims(spec))


def text_keys_of(spec: LlamaServerSpec) -> tuple[TextKey, ...]:
    """Every key of a ConfigMap that is mounted by a field of its own."""
    if spec.model.chat_template is None:
        return ()
    ref = spec.model.chat_template.config_map_key_ref
    return (TextKey("spec.model.chatTemplate.configMapKeyRef", ref.name, ref.key),)


def _claims(spec: LlamaServerSpec) -> Iterator[Claim]:
    source = parse_uri(spec.model.uri)
    if source.scheme is Scheme.PVC:
        yield Claim("spec.model.uri", source.claim, read_only=True)
    for index, adapter in enumerate(spec.model.lora.adapters if spec.model.lora else ()):
        source = parse_uri(adapter.uri)
        if source.scheme is Scheme.PVC:
            yield Claim(f"spec.model.lora.adapters[{index}].uri", source.claim, read_only=True)
    if spec.model.cache is not None:
        claim = spec.model.cache.persistent_volume_claim
        yield Claim("spec.model.cache.persistentVolumeClaim.claimName", claim.claim_name, read_only=False)
    yield from _of_template(spec)


def _of_template(spec: LlamaServerSpec) -> Iterator[Claim]:
    content = spec.pod_template.spec if spec.pod_template else None
    for index, volume in enumerate((content.volumes if content else None) or ()):
        mounted = volume.to_dict().get("persistentVolumeClaim")
        if isinstance(mounted, dict) and isinstance(name := mounted.get("claimName"), str):
            field = f"spec.podTemplate.spec.volumes[{index}].persistentVolumeClaim.claimName"
            yield Claim(field, name, read_only=mounted.get("readOnly") is True)

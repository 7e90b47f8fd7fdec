"""Offloaded KV cache in the whole of a spec: how much memory it takes of a pod, and why it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator

from llamaserver.api.errors import Problem
from llamaserver.api.offloading import (
    ACCELERATOR_CURE,
    ASK_CURE,
    RELEASE_CURE,
    ROOM_CURE,
    SHM_CURE,
    KVOffloading,
)
from llamaserver.api.parallel import engines_of
from llamaserver.api.quantity import LEAST_CURE, LEAST_MEMORY, quantity_value
from llamaserver.api.release import KV_OFFLOADING_IN_SHM_SINCE, KV_OFFLOADING_SINCE, release_of
from llamaserver.api.spec import LlamaServerSpec


def offloaded_bytes(spec: LlamaServerSpec) -> int:
    """Memory of one pod that holds offloaded KV cache, all its engines together; 0 without any."""
    if spec.engine.kv_offloading is None:
        return 0
    return int(quantity_value(spec.engine.kv_offloading.size)) * engines_of(spec.engine.extra_args or ())


def offloading_problems(spec: LlamaServerSpec) -> Iterator[Problem]:
    """Why the KV cache cannot be offloaded as the spec says, with the cure."""
    offloading, field = spec.engine.kv_offloading, "spec.engine.kvOffloading"
    if offloading is None:
        return
    if quantity_value(offloading.size) < quantity_value(LEAST_MEMORY):
        yield Problem(f"{field}.size", f"{LEAST_CURE} (got {offloading.size!r})")
    if spec.accelerator is None:
        yield Problem(field, ACCELERATOR_CURE)
    if not release_of(spec.engine.image).has(KV_OFFLOADING_SINCE):
        yield Problem(field, f"{RELEASE_CURE} (got {spec.engine.image})")
    yield from _memory(spec, offloading)
    yield from _shm(spec)


def _memory(spec: LlamaServerSpec, offloading: KVOffloading) -> Iterator[Problem]:
    resources, wanted = spec.engine.resources, offloaded_bytes(spec)
    asked = {
        part: memory
        for part in ("requests", "limits")
        if resources is not None and (memory := (getattr(resources, part) or {}).get("memory")) is not None
    }
    if not asked:
        yield Problem("spec.engine.kvOffloading", ASK_CURE)
    engines = engines_of(spec.engine.extra_args or ())
    for part, memory in asked.items():
        if quantity_value(memory) <= wanted:
            got = f"{memory} for {engines} x {offloading.size}"
            yield Problem(f"spec.engine.resources.{part}", f"memory {ROOM_CURE} ({got})")


def _shm(spec: LlamaServerSpec) -> Iterator[Problem]:
    """A volume of the user's in the place of /dev/shm that is too small, for a release that is known to keep
    the cache there; one without a readable limit is not judged.
    """
    if not release_of(spec.engine.image).has(KV_OFFLOADING_IN_SHM_SINCE):
        return
    volumes = (spec.pod_template.spec.volumes if spec.pod_template and spec.pod_template.spec else None) or ()
    for index, volume in enumerate(volumes):
        limit = (volume.to_dict().get("emptyDir") or {}).get("sizeLimit")
        if volume.name != "shm" or not isinstance(limit, int | str):
            continue
        try:
            small = quantity_value(limit) <= offloaded_bytes(spec)
        except ValueError:
            continue
        if small:
            where = f"spec.podTemplate.spec.volumes[{index}]"
            yield Problem(where, f"emptyDir.sizeLimit {SHM_CURE} (got {limit})")

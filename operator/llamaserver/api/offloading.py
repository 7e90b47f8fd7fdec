"""spec.engine.kvOffloading: KV cache that has to leave the accelerator is kept in the host's memory.

vLLM takes all of it when it starts; 0.32 maps it in /dev/shm and fills it with pages. So it counts as memory
of the container from the first moment, whatever is offloaded, and a pod that has not asked for it is killed
or pushes others out.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import Final

from pydantic import Field

from llamaserver.api.base import Group, cel, rules
from llamaserver.api.quantity import IS_MEMORY, LEAST_CURE, LEAST_MEMORY, Memory, quantity_value
from llamaserver.api.release import KV_OFFLOADING_SINCE

GIB: Final = 1 << 30
ACCELERATOR_CURE: Final = (
    "needs accelerators, for vLLM offloads from their memory only: set spec.accelerator, or remove it"
)
RELEASE_CURE: Final = (
    f"needs vLLM {'.'.join(map(str, KV_OFFLOADING_SINCE))} or newer: change spec.engine.image, or remove it"
)
ASK_CURE: Final = (
    "needs memory that is set aside, for all of it is taken when the engine starts: set memory in "
    "spec.engine.resources.requests or limits to more than spec.engine.kvOffloading.size"
)
ROOM_CURE: Final = (
    "must be more than spec.engine.kvOffloading.size for each engine of the pod, which is taken whole from "
    "this memory: raise it, or lower the size"
)
SHM_CURE: Final = (
    "must be more than spec.engine.kvOffloading.size for each engine of the pod, which lies in this volume: "
    "raise it, or remove the volume shm, and the operator makes one that is large enough"
)

_SIZE: Final = "self.engine.kvOffloading.size"
_OLDER: Final = "(^|/)[^/@]*:v?0[.]([0-9]|1[0-3])([^0-9/][^/]*)?$"
"""An image whose tag is a release before KV_OFFLOADING_SINCE, as `release_of` reads it."""


class KVOffloading(Group):
    """KV cache in the host's memory, by vLLM's own connector."""

    size: Memory = Field(
        description="The host's memory for it (--kv-offloading-size): of one engine, shared by all its "
        "tensor and pipeline parallel ranks, and as much again for each further data-parallel rank of the "
        "pod. All of it is taken when the engine starts and counts as memory of the container; vLLM 0.32 "
        "keeps it in /dev/shm. At least 1Mi.",
        json_schema_extra=rules(
            IS_MEMORY,
            cel(
                "!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('"
                + LEAST_MEMORY
                + "')) >= 0",
                LEAST_CURE,
            ),
        ),
    )

    @property
    def gib(self) -> str:
        """The size as vLLM takes it, in GiB; rounded down to a KiB, which no engine can use less than."""
        found = (quantity_value(self.size) / GIB).quantize(Decimal("0.000001"), ROUND_DOWN)
        return f"{found.normalize():f}"


def _asks(part: str) -> str:
    return (
        f"has(self.engine.resources) && has(self.engine.resources.{part}) && "
        f"'memory' in self.engine.resources.{part}"
    )


def _holds(part: str) -> dict[str, str]:
    """The rule that memory, where `part` of the resources names it, is more than the size for one engine."""
    memory = f"self.engine.resources.{part}['memory']"
    return cel(
        f"!has(self.engine.kvOffloading) || !({_asks(part)}) || !isQuantity(string({memory})) || "
        f"!isQuantity(string({_SIZE})) || "
        f"quantity(string({memory})).compareTo(quantity(string({_SIZE}))) > 0",
        f"memory {ROOM_CURE}",
        f".engine.resources.{part}",
    )


OFFLOADING_RULES: Final[tuple[dict[str, str], ...]] = (
    cel("!has(self.engine.kvOffloading) || has(self.accelerator)", ACCELERATOR_CURE, ".engine.kvOffloading"),
    cel(
        f"!has(self.engine.kvOffloading) || !self.engine.image.matches({_OLDER!r})",
        RELEASE_CURE,
        ".engine.kvOffloading",
    ),
    cel(
        f"!has(self.engine.kvOffloading) || ({_asks('requests')}) || ({_asks('limits')})",
        ASK_CURE,
        ".engine.kvOffloading",
    ),
    _holds("requests"),
    _holds("limits"),
)

"""spec.accelerator: what the engine runs on."""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, ObjectName, cel, rules

RESOURCE_NAME: Final = r"^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"
RESOURCE_CURE: Final = "write the resource's full name, e.g. nvidia.com/gpu"
ONE_WAY: Final = (
    "set exactly one of resourceName, for a device plugin, and resourceClaimTemplateName, for dynamic "
    "resource allocation"
)
MIG_CURE: Final = "a MIG slice cannot be combined with another: set spec.accelerator.count: 1"


class AcceleratorSpec(Group):
    """The accelerators of one pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("has(self.resourceName) != has(self.resourceClaimTemplateName)", ONE_WAY),
            cel(
                "!has(self.resourceName) || !self.resourceName.startsWith('nvidia.com/mig-') || "
                "self.count == 1",
                MIG_CURE,
                ".count",
            ),
        )
    )

    resource_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name under which the node's device plugin offers the accelerator, e.g. nvidia.com/gpu, "
        "nvidia.com/mig-3g.40gb, amd.com/gpu, gpu.intel.com/xe, habana.ai/gaudi or google.com/tpu. Default: "
        "none, where resourceClaimTemplateName is set. A "
        "change rolls the pods.",
        json_schema_extra=rules(cel(f"self.matches({RESOURCE_NAME!r})", RESOURCE_CURE)),
    )
    resource_claim_template_name: ObjectName | None = Field(
        default=None,
        description="ResourceClaimTemplate in the namespace of the LlamaServer, for accelerators by dynamic "
        "resource allocation (Kubernetes 1.34 or newer) instead of a device plugin. It has to ask for as "
        "many devices as count says. Default: none. A change rolls the pods.",
    )
    count: int = Field(ge=1, le=64, description="Accelerators of one pod. A change rolls the pods.")

    @property
    def is_nvidia(self) -> bool:
        """Whether a device plugin of NVIDIA's offers it; of a claim template nobody can tell."""
        return (self.resource_name or "").startswith("nvidia.com/")

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice, of which a pod can use only one."""
        return (self.resource_name or "").startswith("nvidia.com/mig-")

"""Mistakes that no rule of a schema can say: CEL has no bound for the length of a map's keys, so to look at
them costs more than the API server grants.
"""

from __future__ import annotations

from specs.mistake import Bad

BAD = {
    **{
        f"a key with {what} in {field}": Bad({field: {key: "x"}}, field, "write a label's key")
        for field in (
            "spec.scheduling.nodeSelector",
            "spec.podTemplate.metadata.labels",
            "spec.podTemplate.metadata.annotations",
        )
        for what, key in (
            ("a space", "gpu product"),
            ("two slashes", "nvidia.com/gpu/product"),
            ("a capital in its prefix", "NVIDIA.com/gpu"),
            ("too long a name", "a" * 64),
        )
    },
}

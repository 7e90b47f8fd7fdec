"""The part of a spec that its pods are started from: a change of it replaces them."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from llamaserver.api.spec import LlamaServerSpec

ROLLS_NOTHING: Final = frozenset(
    {"replicas", "suspend", "slo", "tuning", "scaling", "metrics", "rollout", "recovery"}
)
"""Fields of the spec that take effect without replacing a pod."""


def rolling_digest(spec: LlamaServerSpec) -> str:
    """A short digest of the fields that make pods roll, as the user has written them.

    Of the spec and not of the pods that become of it, so that another release of the operator, which may
    build them in another way, has the same digest.
    """
    fields = {key: value for key, value in spec.to_dict().items() if key not in ROLLS_NOTHING}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]

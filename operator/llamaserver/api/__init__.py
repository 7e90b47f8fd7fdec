"""The LlamaServer resource: typed models, defaults, conditions, schema. Nothing here does I/O."""

from llamaserver.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    is_true,
    set_condition,
    timestamp,
)
from llamaserver.api.duration import Duration, format_duration, parse_duration
from llamaserver.api.effective import EffectiveSpec, Target, effective
from llamaserver.api.errors import InvalidSpec, Problem, SchemaError
from llamaserver.api.server import LlamaServer, Metadata, parse, read_status
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.status import Status

__all__ = [
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "Duration",
    "EffectiveSpec",
    "InvalidSpec",
    "LlamaServer",
    "LlamaServerSpec",
    "Metadata",
    "Problem",
    "Reason",
    "SchemaError",
    "Status",
    "Target",
    "effective",
    "find_condition",
    "format_duration",
    "is_true",
    "parse",
    "parse_duration",
    "read_status",
    "set_condition",
    "timestamp",
]

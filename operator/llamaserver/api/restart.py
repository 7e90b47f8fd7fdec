"""spec.tuning.restart: restarts for another cap, where running engines cannot be given one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, rules
from llamaserver.api.duration import Duration, bounded
from llamaserver.api.errors import Problem

if TYPE_CHECKING:
    from llamaserver.api.server import LlamaServerSpec

SHORTEST: Final = Duration("10m")
LONGEST: Final = Duration("168h")
TOO_OFTEN: Final = (
    f"must be at least {SHORTEST}: a restart has to be over, and what came of it measured, before the next"
)
TOO_SELDOM: Final = f"must be at most {LONGEST}: leave spec.tuning.restart out to have nothing restarted"


class RestartSpec(Group):
    """Restarts for another --max-num-seqs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            bounded("minInterval", ">=", SHORTEST, TOO_OFTEN),
            bounded("minInterval", "<=", LONGEST, TOO_SELDOM),
        )
    )

    min_interval: Duration = Field(
        description="At least this long between two restarts, also over restarts of the operator. 10m to "
        "168h; what an hour of your load looks like should have been seen in between."
    )


def restart_problems(spec: LlamaServerSpec) -> Iterator[Problem]:
    """An interval out of bounds, for a spec that was stored under another schema."""
    restart = spec.tuning.restart if spec.tuning else None
    if restart is None:
        return
    seconds = restart.min_interval.seconds
    if not SHORTEST.seconds <= seconds <= LONGEST.seconds:
        cure = TOO_OFTEN if seconds < SHORTEST.seconds else TOO_SELDOM
        yield Problem("spec.tuning.restart.minInterval", f"{cure} (got {restart.min_interval})")

"""spec.tuning.restart: restarts for another cap, where running engines cannot be given one."""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, rules
from llamaserver.api.duration import Duration, bounded

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

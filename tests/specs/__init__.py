"""LlamaServers as changes of the smallest one: those that are refused, by what they are about, and those that
are taken.
"""

from specs import engine, fleet, late, model, pods
from specs.mistake import Bad, Object
from specs.taken import GOOD

BAD = {**fleet.BAD, **model.BAD, **engine.BAD, **pods.BAD}

LATE = late.BAD
"""What the API server takes, for no rule of a schema can say it, and the operator refuses."""

__all__ = ["BAD", "GOOD", "LATE", "Bad", "Object"]

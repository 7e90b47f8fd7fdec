"""LlamaServers as changes of the smallest one: those that are refused, by what they are about, and those that
are taken.
"""

from specs import engine, fleet, model, pods
from specs.mistake import Bad, Object
from specs.taken import GOOD

BAD = {**fleet.BAD, **model.BAD, **engine.BAD, **pods.BAD}

__all__ = ["BAD", "GOOD", "Bad", "Object"]

"""How a decision reaches an engine: the tuner's client, signatures, and what can be done with an engine at
all.
"""

from llamaserver.engine.client import Applied, EngineClient, Refused, Target, Unreachable
from llamaserver.engine.ladder import Capability, Live, Unavailable, capability
from llamaserver.engine.progress import Progress
from llamaserver.engine.signing import BadKeysError, KeyRing, SigningKey

__all__ = [
    "Applied",
    "BadKeysError",
    "Capability",
    "EngineClient",
    "KeyRing",
    "Live",
    "Progress",
    "Refused",
    "SigningKey",
    "Target",
    "Unavailable",
    "Unreachable",
    "capability",
]

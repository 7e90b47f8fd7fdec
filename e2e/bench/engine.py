"""The engine as the bench sees it: changed and read with the operator's own client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Seen
from bench.plan import Pair
from demo.digest import Digest
from harness import machine
from harness.loopback import POD_UID, Loopback
from llamaserver.control import Setpoint
from llamaserver.controller import retune
from llamaserver.engine import Applied, EngineClient, SigningKey, Target
from llamaserver.observe import Sample

POD = "engine"
LEASE_S = 900.0
"""Of a fixed setting: longer than any slot."""
SCRAPE_S = 5.0
TRIES = 10


class NotChangedError(RuntimeError):
    """The engine does not take a setting."""


def target_of(server: Loopback) -> Target:
    """The server in the operator's words."""
    return Target(POD, POD_UID, 0, "127.0.0.1", server.port)


def client(key: SigningKey, monotonic: Callable[[], float] = time.monotonic) -> EngineClient:
    """The operator's client. Use as an async context manager."""
    return EngineClient(key=lambda: key, monotonic=monotonic, wall=time.time)


def new_key(folder: Path) -> SigningKey:
    """A key to sign with, whose public half lies where a server in `folder` finds it."""
    key = SigningKey.generate()
    (folder / "keys").mkdir(parents=True, exist_ok=True)
    (folder / "keys" / f"{key.kid}.pem").write_text(key.public_pem())
    return key


async def fix(engines: EngineClient, target: Target, pair: Pair | None) -> None:
    """Put a fixed setting in force; None is what the engine started with. Raises NotChangedError."""
    setpoint = Setpoint(None, None) if pair is None else Setpoint(pair.cap, pair.budget)
    said: object = None
    for _ in range(TRIES):
        sample = await engines.scrape(target, SCRAPE_S)
        if isinstance(sample, Sample):
            said = await engines.put(target, setpoint, retune.generation(sample) + 1, LEASE_S)
            if isinstance(said, Applied) and said.agreed:
                return
        else:
            said = sample
        await asyncio.sleep(0.5)
    raise NotChangedError(f"cap and budget {pair or 'of the start'} are not taken: {said}")


@dataclass(frozen=True)
class Reading:
    """The tuner's snapshot, when it was taken, and the processor time that others used until then."""

    at: float
    snapshot: Any
    others_s: float | None = None

    @property
    def engine(self) -> Any:
        """The state of the only engine."""
        return self.snapshot["engines"][0]


async def read(server: Loopback, sessions: Collection[int] = ()) -> Reading:
    """How things are now. What runs in `sessions`, and the bench itself, are not among the others."""
    snapshot = await asyncio.to_thread(server.whole_snapshot)
    busy = machine.busy_s()
    return Reading(time.perf_counter(), snapshot, None if busy is None else busy - machine.used_s(sessions))


def seen(first: Reading, last: Reading) -> Seen:
    """The window between two readings of one server."""
    try:
        digest = _itl(last.snapshot) - _itl(first.snapshot)
    except (TypeError, KeyError, ValueError):
        digest = None  # The server started anew, or does not tell: the window is unknown.
    return Seen(
        start=first.at,
        end=last.at,
        engine=digest,
        cap=last.engine["max_num_active_seqs"],
        budget=last.engine["max_num_scheduled_tokens"],
        preemptions=last.engine["preemptions"] - first.engine["preemptions"],
        others_cores=_others(first, last),
    )


def _others(first: Reading, last: Reading) -> float | None:
    if first.others_s is None or last.others_s is None:
        return None
    return max(0.0, (last.others_s - first.others_s) / (last.at - first.at))


def _itl(snapshot: Any) -> Digest:
    return Digest.parse(snapshot["requests"]["0"]["itl"])

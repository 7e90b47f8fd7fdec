"""Leadership by a coordination.k8s.io Lease.

Only one replica may hold the Lease, and a holder may write to the API only while it can prove that it holds
it: its last renewal is younger than `renew_deadline_s`, which is shorter than the `duration_s` another
replica has to wait. Both are measured on local monotonic clocks, so wall clocks need not agree.

A holder that cannot renew because the API server is gone cannot be replaced either, for taking the Lease
needs that API server. It therefore stays a holder, unproven: it writes nothing to the API, and what it may
still do to engines is decided elsewhere (`controller.mandate`). A holder that reads that another one holds
the Lease has lost it for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llamaserver.cluster.errors import ApiError, ConflictError, NotFoundError
from llamaserver.cluster.kinds import LEASE, Object
from llamaserver.cluster.kube import Kube

_log = logging.getLogger(__name__)


_UNPROCESSABLE = 422
"""What an API server answers to a replacement of an object that was deleted or made anew in between."""


class LostLeadershipError(Exception):
    """Another replica holds the Lease. Nothing this process knows may be acted on any more."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. A crash of the leader is noticed after `duration_s`, an orderly exit within `retry_s`."""

    duration_s: float = 30.0
    renew_deadline_s: float = 20.0
    retry_s: float = 4.0


class Elector:
    """Takes, keeps and releases one Lease.

    `monotonic` gives seconds for every judgement; `wall` only the timestamps that people read in the Lease.
    `on_contact` is called after every successful read or write of the Lease (see the watch canary),
    `on_proof` whenever a renewal makes this replica able again to prove that it leads.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        monotonic: Callable[[], float],
        times: LeaseTimes = LeaseTimes(),
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_contact: Callable[[], None] = lambda: None,
        on_proof: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._times = times
        self._monotonic = monotonic
        self._wall = wall
        self._on_contact = on_contact
        self._on_proof = on_proof
        self._live: Object | None = None
        self._renewed_at: float | None = None
        self._seen: tuple[tuple[str, str], float] | None = None
        self.acquired = asyncio.Event()

    def holds(self) -> bool:
        """True from taking the Lease until it is known to be lost or was released."""
        return self._renewed_at is not None

    def proven(self) -> bool:
        """True while no other replica can possibly hold the Lease."""
        return self._renewed_at is not None and (
            self._monotonic() - self._renewed_at < self._times.renew_deadline_s
        )

    async def run(self) -> None:
        """Take the Lease when it is free, and renew it for ever.

        Raises:
            LostLeadershipError: it was ours and another replica has it now.
        """
        while True:
            try:
                async with asyncio.timeout(self._times.renew_deadline_s / 2):
                    await self._once()
            except (ApiError, TimeoutError) as error:
                _log.warning("the leader lease cannot be reached: %s", error or "no answer")
            await asyncio.sleep(self._times.retry_s)

    async def release(self) -> None:
        """Give the Lease back, so that another replica need not wait for its end. Best effort, within 3 s."""
        if not self.holds() or self._live is None:
            return
        self._renewed_at = None
        try:
            async with asyncio.timeout(3):
                await self._kube.replace(self._record(self._live, holder="", duration_s=1.0))
            _log.info("the leader lease is released")
        except (ApiError, TimeoutError) as error:
            _log.warning(
                "the leader lease could not be released; it ends by itself: %s", error or "no answer"
            )

    async def _once(self) -> None:
        """One look at the Lease, and one write where it is ours or free."""
        live = self._live if self.holds() else None
        if live is None:
            live = await self._kube.get(LEASE, self._namespace, self._name)
            self._on_contact()
            if live is not None and not self._may_take(live):
                return
        if await self._write(live):
            return
        await self._look_who_holds_it()
        # Ours after all: an earlier write got through although its answer did not, or somebody annotated it.
        if self.holds():
            await self._write(self._live)

    async def _write(self, live: Object | None) -> bool:
        """Make the Lease ours for its next term. False when it is not as it was taken to be."""
        started = self._monotonic()
        try:
            self._live = await self._kube.replace(self._record(live, self.identity, self._times.duration_s))
        except (ConflictError, NotFoundError):
            return False
        except ApiError as error:
            if error.status == _UNPROCESSABLE:
                return False
            raise
        before, self._renewed_at = self.proven(), started
        self._on_contact()
        if not before:
            self._on_proof()
        if not self.acquired.is_set():
            _log.info("this replica leads (%s)", self.identity)
            self.acquired.set()
        return True

    async def _look_who_holds_it(self) -> None:
        live = await self._kube.get(LEASE, self._namespace, self._name)
        self._on_contact()
        if not self.holds():
            return
        holder = (live or {}).get("spec", {}).get("holderIdentity")
        if live is not None and holder != self.identity:
            self._renewed_at = None
            raise LostLeadershipError(
                f"the leader lease is held by {holder or 'nobody'}, no longer by {self.identity}"
            )
        self._live = live

    def _may_take(self, live: Object) -> bool:
        """Free, ours, or unchanged for its whole duration on our own clock."""
        spec: dict[str, Any] = live.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self.identity):
            return True
        state = (holder, str(spec.get("renewTime")))
        now = self._monotonic()
        if self._seen is None or self._seen[0] != state:
            self._seen = (state, now)
            return False
        return now - self._seen[1] >= float(spec.get("leaseDurationSeconds") or self._times.duration_s)

    def _record(self, live: Object | None, holder: str, duration_s: float) -> Object:
        """The Lease as it should be, with the live one's resourceVersion so that only one of two writers
        wins.
        """
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before: dict[str, Any] = (live or {}).get("spec") or {}
        handed_over = (before.get("holderIdentity") or "") != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(duration_s)),
            "acquireTime": now if handed_over else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0)
            + (1 if handed_over and holder else 0),
        }
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if live is not None:
            metadata = {**live["metadata"]}
            metadata.pop("managedFields", None)
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}

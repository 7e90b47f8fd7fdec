"""Leadership: one leader at a time, whatever hangs, on a clock that does not wait."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from llamaserver.cluster import (
    ApiError,
    ConflictError,
    Elector,
    LeaseTimes,
    LostLeadershipError,
    UnavailableError,
)
from llamaserver.cluster.kinds import Kind, Object

pytestmark = pytest.mark.looptime

TIMES = LeaseTimes(duration_s=30, renew_deadline_s=20, retry_s=4)


class LeaseServer:
    """The API server as far as Leases go: optimistic concurrency, and faults for chosen clients."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0

    def client(self) -> Client:
        return Client(self)


class Client:
    """One replica's way to the server. `fault`: empty, "gone" (no connection) or "hang"."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.fault = ""
        self.lose_answers = False
        self.stale_is: ApiError = ConflictError(409, "Conflict", "the object has been modified")

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        await self._reach()
        return copy.deepcopy(self.server.lease)

    async def replace(self, obj: Object) -> Object:
        await self._reach()
        given = obj["metadata"].get("resourceVersion")
        live = None if self.server.lease is None else self.server.lease["metadata"]["resourceVersion"]
        if given != live:
            raise self.stale_is
        self.server.version += 1
        self.server.lease = copy.deepcopy(obj)
        self.server.lease["metadata"]["resourceVersion"] = str(self.server.version)
        if self.lose_answers:
            raise UnavailableError(0, "Timeout", "the answer was lost")
        return copy.deepcopy(self.server.lease)

    async def _reach(self) -> None:
        await asyncio.sleep(0.01)
        if self.fault == "gone":
            raise UnavailableError(0, "NoConnection", "connection refused")
        if self.fault == "hang":
            await asyncio.sleep(10_000)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the elector has no business calling {name}")


@contextlib.asynccontextmanager
async def replica(
    client: Client, identity: str, on_proof: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[Elector, asyncio.Task[None]]]:
    elector = Elector(
        client,
        namespace="ns",
        name="lease",
        identity=identity,
        monotonic=asyncio.get_running_loop().time,
        times=TIMES,
        on_proof=on_proof,
    )
    task = asyncio.create_task(elector.run())
    yield elector, task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, LostLeadershipError):
        await task


async def test_the_first_of_two_leads() -> None:
    server = LeaseServer()
    async with replica(server.client(), "a") as (a, _):
        await asyncio.wait_for(a.acquired.wait(), 5)
        async with replica(server.client(), "b") as (b, _):
            await asyncio.sleep(300)
            assert a.proven()
            assert not b.holds()


async def test_it_is_told_when_the_lead_can_be_proven_again_and_not_at_each_renewal() -> None:
    proofs: list[float] = []
    client, now = LeaseServer().client(), asyncio.get_running_loop().time
    async with replica(client, "a", on_proof=lambda: proofs.append(now())) as (a, _):
        await asyncio.sleep(60)
        assert len(proofs) == 1
        client.fault = "gone"
        await asyncio.sleep(120)
        assert not a.proven()
        client.fault = ""
        await asyncio.sleep(TIMES.retry_s + 1)
        assert a.proven()
        assert len(proofs) == 2


async def test_two_that_start_at_once_do_not_both_lead() -> None:
    server = LeaseServer()
    async with replica(server.client(), "a") as (a, _), replica(server.client(), "b") as (b, _):
        await asyncio.sleep(10)
        assert a.holds() != b.holds()


async def test_an_orderly_exit_hands_over_at_once() -> None:
    server = LeaseServer()
    async with replica(server.client(), "b") as (b, task):
        await asyncio.wait_for(b.acquired.wait(), 5)
        async with replica(server.client(), "a") as (a, _):
            await asyncio.sleep(10)
            task.cancel()
            await b.release()
            assert not b.holds()
            await asyncio.wait_for(a.acquired.wait(), TIMES.retry_s + 1)


async def test_a_crashed_leader_is_replaced_after_the_lease_and_not_before() -> None:
    server = LeaseServer()
    started = asyncio.get_running_loop().time()
    async with replica(server.client(), "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        task.cancel()
    async with replica(server.client(), "b") as (b, _):
        await asyncio.wait_for(b.acquired.wait(), TIMES.duration_s + 2 * TIMES.retry_s)
    assert asyncio.get_running_loop().time() - started >= TIMES.duration_s


@pytest.mark.parametrize("fault", ["gone", "hang"])
async def test_a_leader_cut_off_proves_nothing_before_another_can_lead(fault: str) -> None:
    server = LeaseServer()
    cut = server.client()
    async with replica(cut, "a") as (a, _), replica(server.client(), "b") as (b, _):
        await asyncio.sleep(20)
        leader, other = (a, b) if a.holds() else (b, a)
        assert leader is a
        cut.fault = fault
        while not other.holds():
            await asyncio.sleep(0.05)
            assert not (leader.proven() and other.proven())
        assert leader.holds(), "without an answer nothing is lost yet"
        assert not leader.proven()


@pytest.mark.parametrize("fault", ["gone", "hang"])
async def test_a_leader_goes_on_when_the_api_comes_back(fault: str) -> None:
    server = LeaseServer()
    client = server.client()
    async with replica(client, "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        client.fault = fault
        await asyncio.sleep(120)
        assert a.holds()
        assert not a.proven()
        client.fault = ""
        await asyncio.sleep(TIMES.retry_s + TIMES.renew_deadline_s / 2 + 1)
        assert a.proven()
        assert not task.done()


async def test_a_leader_that_finds_another_has_lost_for_good() -> None:
    server = LeaseServer()
    cut = server.client()
    async with replica(cut, "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        cut.fault = "gone"
        async with replica(server.client(), "b") as (b, _):
            await asyncio.wait_for(b.acquired.wait(), 60)
            cut.fault = ""
            with pytest.raises(LostLeadershipError, match="held by b"):
                await asyncio.wait_for(task, 10)
            assert not a.holds()
            assert b.proven()


async def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    server = LeaseServer()
    client = server.client()
    async with replica(client, "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        client.lose_answers = True
        await asyncio.sleep(10)
        client.lose_answers = False
        await asyncio.sleep(3 * TIMES.retry_s)
        assert a.proven()
        assert not task.done()


async def test_after_a_lost_answer_the_lease_is_proven_anew_in_the_same_round() -> None:
    server = LeaseServer()
    client = server.client()
    async with replica(client, "a") as (a, _):
        await asyncio.wait_for(a.acquired.wait(), 5)
        client.lose_answers = True
        await asyncio.sleep(TIMES.renew_deadline_s + TIMES.retry_s)
        assert not a.proven()
        client.lose_answers = False
        await asyncio.sleep(TIMES.retry_s + 0.1)
        assert a.proven()


async def test_a_lease_that_was_deleted_and_is_refused_as_invalid_is_made_again() -> None:
    server = LeaseServer()
    client = server.client()
    async with replica(client, "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        client.stale_is = ApiError(422, "Invalid", "metadata.uid: field is immutable")
        server.lease = None
        await asyncio.sleep(TIMES.retry_s + 0.1)
        assert server.lease is not None
        assert a.proven()
        assert not task.done()


async def test_a_lease_that_somebody_deleted_is_made_again() -> None:
    server = LeaseServer()
    async with replica(server.client(), "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        server.lease = None
        await asyncio.sleep(4 * TIMES.retry_s)
        assert a.proven()
        assert server.lease is not None
        assert not task.done()


async def test_a_restarted_container_takes_up_its_own_lease() -> None:
    server = LeaseServer()
    async with replica(server.client(), "a") as (a, task):
        await asyncio.wait_for(a.acquired.wait(), 5)
        task.cancel()
    async with replica(server.client(), "a") as (again, _):
        await asyncio.wait_for(again.acquired.wait(), TIMES.retry_s)

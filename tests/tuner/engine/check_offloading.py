"""Cap and budget beside vLLM's own KV offloading: its real scheduler and connector, and a made-up worker that
moves nothing but says when it would be done.
"""

from __future__ import annotations

import random
import unittest
from collections import deque
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from walk import Walk

from harness import BLOCK, Loop, make_config, make_request, make_scheduler, put, tuned
from llamaserver_tuner.setpoints import BUDGET, CAP

PROMPT = 8 * BLOCK
LOAD_STEPS = 3


def make_offloading(asynchronous: bool, role: str = "kv_both", **other: Any) -> Scheduler:
    """A scheduler whose cache holds a few sequences, and ten times as much beside it."""
    config = make_config(asynchronous=asynchronous, caching=True, **other)
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role=role,
        kv_connector_extra_config={"cpu_bytes_to_use": 1 << 26},
    )
    return make_scheduler(config, blocks=60)


def asked(name: str, user: int, output: int) -> Request:
    """A request whose prompt is that user's own, always the same."""
    return make_request(name, [10 + user] * PROMPT, output, cached=True)


class Offloading(Loop):
    """The loop with a worker that stores within a step and loads within LOAD_STEPS."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.loads = 0
        self._pending: deque[tuple[int, int, str]] = deque()
        self._steps = 0

    def submit(self, scheduled: Any) -> Any:
        self._steps += 1
        metadata = scheduled.kv_connector_metadata
        self._pending += [
            (self._steps + LOAD_STEPS, job, load.req_id) for job, load in metadata.load_jobs.items()
        ]
        self.loads += len(metadata.load_jobs)
        done = OffloadingWorkerMetadata(dict.fromkeys(metadata.store_jobs, 1))
        come = set()
        while self._pending and self._pending[0][0] <= self._steps:
            _, job, request = self._pending.popleft()
            done.completed_jobs[job] = 1
            come.add(request)
        self.transfers = KVConnectorOutput(finished_recving=come or None, kv_connector_worker_meta=done)
        return super().submit(scheduled)

    def answered(self, output: Any) -> Any:
        output.kv_connector_output = self.transfers
        return output


class Cap(unittest.TestCase):
    def test_it_holds_while_prompts_are_loaded_and_every_stream_completes(self) -> None:
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                scheduler = make_offloading(asynchronous, seqs=8)
                tuner, loop = tuned(scheduler), Offloading(scheduler)
                self.assertEqual(tuner.read()["live"], {CAP: "", BUDGET: ""})
                for turn in range(2):
                    for user in range(12):
                        scheduler.add_request(asked(f"{turn}/{user}", user, 20))
                    loop.drain()
                self.assertGreater(loop.loads, 4, "the second turn's prompts come from the host's memory")
                self.assertNotIn("error", put(tuner, 2))
                for user in range(12):
                    scheduler.add_request(asked(f"2/{user}", user, 20))
                before = loop.loads
                while scheduler.has_requests():
                    loop.step()
                    self.assertLessEqual(len(scheduler.running), 2)
                self.assertGreater(loop.loads, before)
                self.assertEqual(len(loop.finished), 36)
                self.assertEqual(set(loop.tokens.values()), {20})

    def test_who_has_been_loaded_and_waits_for_the_cap_is_not_deferred(self) -> None:
        scheduler = make_offloading(False, seqs=8)
        tuner, loop = tuned(scheduler), Offloading(scheduler)
        for user in range(4):
            scheduler.add_request(asked(f"0/{user}", user, 20))
        for other in range(4, 12):  # what pushes them out of the accelerator's memory
            scheduler.add_request(asked(f"0/{other}", other, 20))
        loop.drain()
        put(tuner, 1)
        for user in range(4):
            scheduler.add_request(asked(f"1/{user}", user, 60))
        told = set()
        for _ in range(20):
            loop.step()
            state = tuner.read()
            told.add(
                (
                    state["running"],
                    state["waiting"],
                    state["waiting_deferred"],
                    len(scheduler.deferred_waiting),
                )
            )
        self.assertIn((0, 4, 4, 4), told, "all are being loaded")
        self.assertIn((1, 3, 0, 3), told, "one runs, and the others wait for nothing but its place")


class BothKnobs(Walk):
    def test_the_laws_hold_while_prompts_are_loaded_under_small_budgets(self) -> None:
        """An engine that only takes what others have computed among them, which frees its blocks later."""
        for role in ("kv_both", "kv_consumer"):
            for asynchronous in (False, True):
                with self.subTest(role=role, asynchronous=asynchronous):
                    scheduler, rng = make_offloading(asynchronous, role, seqs=8), random.Random(1)
                    loop = Offloading(scheduler)
                    requests = [
                        asked(f"{turn}/{user}", user, rng.randint(2, 40))
                        for turn in range(4)
                        for user in range(12)
                    ]
                    self.walk(scheduler, rng, requests, loop)
                    self.assertGreater(loop.loads, 4)


class Role(unittest.TestCase):
    def test_an_engine_that_prefills_for_others_has_no_cap_to_move(self) -> None:
        tuner = tuned(make_offloading(False, role="kv_producer"))
        self.assertEqual(tuner.read()["live"], {CAP: "PrefillRole", BUDGET: ""})
        self.assertEqual(put(tuner, 4)["error"]["reason"], "NotWritable")


if __name__ == "__main__":
    unittest.main()

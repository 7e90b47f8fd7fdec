"""The tuner on vLLM's real schedulers: what a change does to running requests, and what it never does."""

from __future__ import annotations

import json
import logging
import random
import time
import unittest
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.utils import compute_iteration_details

from harness import Clock, Loop, make_config, make_request, make_scheduler
from llamaserver_tuner.engine import EngineTuner
from llamaserver_tuner.scheduler import SchedulerPort, shape_of
from llamaserver_tuner.setpoints import BUDGET, CAP

FAR = time.time() + 3600


def tuned(scheduler: Any, clock: Clock | None = None) -> EngineTuner:
    tuner = EngineTuner(scheduler, 0, clock or Clock())
    tuner.attach()
    return tuner


def put(tuner: EngineTuner, cap: int | None, budget: int | None = None, lease: float = 60) -> dict[str, Any]:
    body = {CAP: cap, BUDGET: budget, "generation": tuner.setpoints.generation + 1, "lease_seconds": lease}
    return tuner.apply(json.dumps(body), FAR)


def both(**config: Any) -> list[Scheduler]:
    """The synchronous and the asynchronous scheduler."""
    return [make_scheduler(make_config(asynchronous=kind, **config)) for kind in (False, True)]


class Cap(unittest.TestCase):
    def test_a_lowered_cap_drains_without_a_preemption_and_every_stream_completes(self) -> None:
        for scheduler in both(seqs=16):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                for i in range(24):
                    scheduler.add_request(make_request(f"r{i}", 20, 10 + 3 * i))
                for _ in range(6):
                    loop.step()
                self.assertEqual(len(scheduler.running), 16)
                state = put(tuner, 4)
                self.assertEqual((state[CAP], state["running"], state["waiting"]), (4, 16, 8))
                widths = []
                while scheduler.has_requests():
                    loop.step()
                    widths.append(len(scheduler.running))
                below = next(i for i, width in enumerate(widths) if width <= 4)
                self.assertEqual(widths[:below], sorted(widths[:below], reverse=True))
                self.assertLessEqual(max(widths[below:]), 4)
                self.assertEqual(tuner.preemptions, 0)
                self.assertEqual(loop.tokens, {f"r{i}": 10 + 3 * i for i in range(24)})

    def test_a_raised_cap_admits_at_the_next_step(self) -> None:
        for scheduler in both(seqs=16):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                put(tuner, 2)
                for i in range(8):
                    scheduler.add_request(make_request(f"r{i}", 20, 50))
                for _ in range(4):
                    loop.step()
                self.assertEqual(len(scheduler.running), 2)
                put(tuner, 8)
                loop.step()
                self.assertEqual(len(scheduler.running), 8)
                loop.drain()

    def test_the_cap_never_passes_what_the_engine_was_started_for(self) -> None:
        scheduler = make_scheduler(make_config(seqs=8))
        tuner, loop = tuned(scheduler), Loop(scheduler)
        for cap in (9, 0, -1, 10**9):
            self.assertEqual(put(tuner, cap)["error"]["reason"], "OutOfBounds")
            with self.assertRaises(ValueError):
                tuner.port.cap = cap
        self.assertEqual((scheduler.max_num_active_reqs, scheduler.max_num_running_reqs), (8, 8))
        for i in range(20):
            scheduler.add_request(make_request(f"r{i}", 20, 10))
        loop.drain()
        self.assertEqual(len(loop.finished), 20)

    def test_a_start_below_the_ceiling_is_where_null_and_the_end_of_the_lease_lead(self) -> None:
        scheduler = make_scheduler(make_config(seqs=16, max_num_active_seqs=6))
        clock = Clock()
        tuner = tuned(scheduler, clock)
        self.assertEqual(put(tuner, 16)[CAP], 16)
        self.assertEqual(put(tuner, None)[CAP], 6)
        self.assertEqual(put(tuner, 12, lease=10)[CAP], 12)
        clock.now += 10
        scheduler.schedule()
        self.assertEqual(scheduler.max_num_active_reqs, 6)
        state = tuner.read()
        self.assertEqual((state["start_num_active_seqs"], state["max_num_seqs"]), (6, 16))
        self.assertEqual(state["retunes"], {"applied": 3, "expired": 1, "rejected": 0})


class Budget(unittest.TestCase):
    def test_the_smallest_budget_still_gives_every_running_sequence_its_token(self) -> None:
        for scheduler in both(seqs=16, tokens=512):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                for i in range(16):
                    scheduler.add_request(make_request(f"r{i}", 24, 120))
                for _ in range(8):
                    loop.step()
                low = tuner.read()["min_num_scheduled_tokens"]
                self.assertEqual(low, 16)
                self.assertEqual(put(tuner, None, low - 1)["error"]["field"], BUDGET)
                self.assertNotIn("error", put(tuner, None, low))
                self.assertEqual(scheduler.max_num_scheduled_tokens, low)
                for _ in range(20):
                    self.assertEqual(len(loop.step().num_scheduled_tokens), 16)
                loop.drain()

    def test_nobody_starves_while_a_lowered_cap_drains_under_a_small_budget(self) -> None:
        for scheduler in both(seqs=16):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                for i in range(16):
                    scheduler.add_request(make_request(f"r{i}", 24, 20 + 4 * i))
                for _ in range(6):
                    loop.step()
                state = put(tuner, 4, 4)
                self.assertEqual((state["wanted"][BUDGET], state[BUDGET]), (4, 16))
                for _ in range(3):
                    loop.step()
                while len(scheduler.running) > 1:
                    running = {r.request_id for r in scheduler.running}
                    before = dict(loop.tokens)
                    for _ in range(loop.depth + 1):
                        loop.step()
                    still = {r.request_id for r in scheduler.running} & running
                    self.assertTrue(all(loop.tokens[name] > before[name] for name in still))
                self.assertLessEqual(scheduler.max_num_scheduled_tokens, 6)
                loop.drain()
                self.assertEqual(len(loop.finished), 16)

    def test_a_small_budget_spreads_a_prompt_and_the_start_value_is_the_end_of_it(self) -> None:
        scheduler = make_scheduler(make_config(seqs=8, tokens=512))
        clock = Clock()
        tuner, loop = tuned(scheduler, clock), Loop(scheduler)
        put(tuner, 8, 64, lease=30)
        scheduler.add_request(make_request("long", 600, 5))
        chunks = [loop.step().total_num_scheduled_tokens for _ in range(3)]
        self.assertEqual(chunks, [64, 64, 64])
        clock.now += 30
        self.assertEqual(loop.step().total_num_scheduled_tokens, 408)
        self.assertEqual(scheduler.max_num_scheduled_tokens, 512)
        self.assertEqual(put(tuner, None, 513)["error"]["reason"], "OutOfBounds")
        loop.drain()


class Lease(unittest.TestCase):
    def test_an_idle_engine_is_back_at_its_start_when_somebody_looks(self) -> None:
        scheduler = make_scheduler(make_config(seqs=16))
        clock = Clock()
        tuner = tuned(scheduler, clock)
        put(tuner, 3, 100, lease=20)
        clock.now += 19.9
        self.assertEqual(tuner.read()[CAP], 3)
        clock.now += 0.2
        state = tuner.read()
        self.assertEqual((state[CAP], state[BUDGET], state["lease_expires_in_s"]), (16, 512, None))

    def test_a_renewed_lease_holds(self) -> None:
        clock = Clock()
        tuner = tuned(make_scheduler(), clock)
        for _ in range(10):
            put(tuner, 3, lease=10)
            clock.now += 9
            self.assertEqual(tuner.read()[CAP], 3)
        self.assertEqual(tuner.read()["retunes"]["expired"], 0)

    def test_a_change_that_reaches_the_engine_too_late_is_not_applied(self) -> None:
        tuner = tuned(make_scheduler())
        body = {CAP: 3, BUDGET: None, "generation": 1, "lease_seconds": 60}
        state = tuner.apply(json.dumps(body), time.time() - 1)
        self.assertEqual((state["error"]["reason"], state[CAP], state["generation"]), ("Expired", 16, 0))


class WhatIsLive(unittest.TestCase):
    def live(self, scheduler: Scheduler) -> tuple[str, str]:
        limits = SchedulerPort(scheduler).limits
        return limits.live[CAP], limits.live[BUDGET]

    def test_the_stock_schedulers_take_both(self) -> None:
        for scheduler in both():
            self.assertEqual(self.live(scheduler), ("", ""))

    def test_without_chunked_prefill_the_budget_stays(self) -> None:
        config = make_config(tokens=2048, enable_chunked_prefill=False)
        scheduler = make_scheduler(config)
        self.assertEqual(self.live(scheduler), ("", "ChunkedPrefillOff"))
        tuner = tuned(scheduler)
        self.assertEqual(put(tuner, 4, 256)["error"]["reason"], "NotWritable")
        self.assertEqual((put(tuner, 4)[CAP], scheduler.max_num_scheduled_tokens), (4, 2048))

    def test_what_may_not_be_split_keeps_the_budget(self) -> None:
        scheduler = make_scheduler(make_config(is_multimodal_model=True, disable_chunked_mm_input=True))
        self.assertEqual(self.live(scheduler), ("", "MultimodalItemsNotChunked"))
        scheduler = make_scheduler(make_config(is_multimodal_model=True))
        self.assertEqual(self.live(scheduler), ("", ""))

    def test_another_scheduler_class_is_left_alone_but_read(self) -> None:
        class Own(Scheduler):
            pass

        scheduler = make_scheduler(cls=Own)
        self.assertEqual(self.live(scheduler), ("CustomScheduler", "CustomScheduler"))
        tuner, loop = tuned(scheduler), Loop(scheduler)
        self.assertEqual(put(tuner, 4)["error"]["reason"], "NotWritable")
        scheduler.add_request(make_request("r", 20, 5))
        loop.drain()
        self.assertEqual(tuner.read()["steps"]["decode"]["n"], 4)

    def test_a_release_without_the_attribute_is_read_and_not_written(self) -> None:
        scheduler = make_scheduler()
        del scheduler.max_num_active_reqs
        self.assertEqual(self.live(scheduler), ("NoAttribute", ""))
        self.assertEqual(SchedulerPort(scheduler).cap, 16)

    def test_speculation_long_prompts_and_block_alignment_raise_the_smallest_budget(self) -> None:
        scheduler = make_scheduler(make_config(long_prefill_token_threshold=100))
        self.assertEqual(SchedulerPort(scheduler).limits.min_budget(4), 104)
        scheduler = make_scheduler()
        scheduler.num_spec_tokens = 3
        scheduler.num_prefill_lookahead = 2
        self.assertEqual(SchedulerPort(scheduler).limits.min_budget(4), 18)
        scheduler.need_mamba_block_aligned_split = True
        self.assertEqual(SchedulerPort(scheduler).limits.min_budget(4), 34)


class Meter(unittest.TestCase):
    def test_a_step_is_described_as_vllm_describes_it(self) -> None:
        """Random traffic, with chunked prompts, short outputs and a KV cache too small for it."""
        for seed in range(4):
            scheduler = make_scheduler(make_config(asynchronous=seed % 2 == 1, tokens=96), blocks=60)
            choose, loop, preempted, new, compared = random.Random(seed), Loop(scheduler), 0, 0, 0
            tuner = tuned(scheduler)
            for turn in range(300):
                if choose.random() < 0.25 and turn < 250:
                    request = make_request(f"r{turn}", choose.randint(2, 200), choose.randint(1, 60))
                    scheduler.add_request(request)
                    new += 1
                if not scheduler.has_requests():
                    continue
                scheduled = scheduler.schedule()
                kv = sum(
                    scheduler.requests[name].num_computed_tokens for name in scheduled.num_scheduled_tokens
                )
                resumed = any(
                    scheduler.requests[name].num_preemptions for name in scheduled.num_scheduled_tokens
                )
                preempted += len(scheduled.preempted_req_ids)
                shape, details = shape_of(scheduled), compute_iteration_details(scheduled)
                loop.submit(scheduled)
                if shape is None:
                    self.assertEqual(scheduled.total_num_scheduled_tokens, 0)
                    continue
                self.assertEqual(shape.kv_tokens, kv)
                total = scheduled.total_num_scheduled_tokens
                self.assertEqual(shape.decoding + shape.prefill_tokens, total)
                self.assertEqual(shape.clean, not scheduled.preempted_req_ids)
                # vLLM counts what is computed again after a preemption as generated, and a prompt's last
                # chunk as prefill even if it is one token.
                single = [n for n, tokens in scheduled.num_scheduled_tokens.items() if tokens == 1]
                if not resumed and not any(is_prefill(scheduled, name) for name in single):
                    compared += 1
                    self.assertEqual(shape.decoding, details.num_generation_requests)
                    self.assertEqual(shape.prefill_tokens, details.num_ctx_tokens)
            loop.drain()
            self.assertGreater(preempted, 0, "the traffic was meant to overfill the KV cache")
            self.assertGreater(compared, 30)
            self.assertEqual(tuner.preemptions, loop.events.count(EngineCoreEventType.PREEMPTED))
            state = tuner.read()
            self.assertEqual((state["arrived"], state["queue"]["count"]), (new, new))

    def test_only_steps_with_a_predecessor_count(self) -> None:
        scheduler = make_scheduler()
        clock = Clock()
        tuner, loop = tuned(scheduler, clock), Loop(scheduler)
        for burst in range(3):
            scheduler.add_request(make_request(f"r{burst}", 20, 6))
            while scheduler.has_requests():
                clock.now += 0.01
                loop.step()
            clock.now += 0.05
        steps = tuner.read()["steps"]
        self.assertEqual((steps["decode"]["n"], steps["mixed"]["n"], steps["skipped"]), (15, 0, 3))
        self.assertAlmostEqual(steps["decode"]["y"], 15 * 10_000, delta=30)
        self.assertEqual(steps["decode"]["B"], 15)
        self.assertEqual(steps["decode"]["K"], 3 * sum(range(21, 26)))

    def test_a_prompt_of_one_token_is_a_prefill(self) -> None:
        scheduler = make_scheduler()
        loop = Loop(scheduler)
        for i in range(3):
            scheduler.add_request(make_request(f"r{i}", 20, 10))
        loop.step()
        scheduler.add_request(make_request("one", 1, 10))
        self.assertEqual(shape_of(loop.step()), (3, 3 * 21 + 1, 1, True))

    def test_all_that_a_reset_of_the_cache_preempts_is_counted_and_admitted_once(self) -> None:
        """One of them in the middle of its prompt; either of vLLM's model runners."""
        for second_runner in (False, True):
            scheduler = make_scheduler(make_config(tokens=64))
            scheduler.use_v2_model_runner = second_runner
            tuner, loop = tuned(scheduler), Loop(scheduler)
            for i in range(3):
                scheduler.add_request(make_request(f"r{i}", 25, 10))
            loop.step()
            scheduler.reset_prefix_cache(reset_running_requests=True)
            loop.drain()
            self.assertEqual((tuner.preemptions, tuner.queue.count, tuner.arrived), (3, 3, 3))

    def test_a_further_turn_of_a_session_is_no_arrival(self) -> None:
        scheduler = make_scheduler()
        tuner = tuned(scheduler)
        for _ in range(3):
            scheduler.add_request(make_request("session", 20, 10, resumable=True))
        self.assertEqual(tuner.arrived, 1)

    def test_a_session_paused_for_more_input_is_told_apart(self) -> None:
        scheduler = make_scheduler(make_config(seqs=4))
        tuner, loop = tuned(scheduler), Loop(scheduler)
        scheduler.add_request(make_request("session", 20, 3, resumable=True))
        for _ in range(6):
            loop.step()
        state = tuner.read()
        names = ("running", "waiting", "waiting_deferred", "waiting_for_streaming_input")
        self.assertEqual([state[name] for name in names], [0, 1, 1, 1])

    def test_the_cap_of_a_pipeline_is_not_live(self) -> None:
        scheduler = make_scheduler()
        scheduler.parallel_config.pipeline_parallel_size = 2
        tuner = tuned(scheduler)
        state = tuner.read()
        self.assertEqual(state["pipeline_parallel_size"], 2)
        self.assertEqual(state["live"], {CAP: "PipelineParallel", BUDGET: ""})
        self.assertEqual(put(tuner, 4)["error"]["reason"], "NotWritable")
        self.assertEqual(put(tuner, None, 256)[BUDGET], 256)

    def test_gauges_are_the_schedulers_own(self) -> None:
        scheduler = make_scheduler(make_config(seqs=4), blocks=101)
        tuner, loop = tuned(scheduler), Loop(scheduler)
        for i in range(7):
            scheduler.add_request(make_request(f"r{i}", 40, 30))
        loop.step()
        state, stats = tuner.read(), scheduler.make_stats()
        self.assertEqual((state["running"], state["waiting"], state["waiting_deferred"]), (4, 3, 0))
        self.assertEqual(stats.num_waiting_reqs + stats.num_skipped_waiting_reqs, state["waiting"])
        kv = state["kv"]
        self.assertEqual((kv["block_size"], kv["num_blocks"], kv["used_blocks"]), (16, 100, 12))
        self.assertAlmostEqual(kv["used_blocks"] / kv["num_blocks"], stats.kv_cache_usage)


class Failure(unittest.TestCase):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)

    def tearDown(self) -> None:
        logging.disable(logging.NOTSET)

    def test_an_error_in_the_tuner_leaves_the_engine_as_it_was_started(self) -> None:
        for broken in ("_before_step", "_after_step", "_after_admission", "_before_arrival"):
            with self.subTest(broken):
                scheduler = make_scheduler()
                tuner, loop = tuned(scheduler), Loop(scheduler)
                scheduler.add_request(make_request("early", 20, 40))
                loop.step()
                put(tuner, 2, 64)
                setattr(tuner, broken, boom)
                for i in range(12):
                    scheduler.add_request(make_request(f"r{i}", 20, 10))
                loop.drain()
                self.assertEqual(len(loop.finished), 13)
                self.assertEqual(
                    (scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens), (16, 512)
                )
                state = tuner.read()
                self.assertEqual(state["failed"], "RuntimeError: boom")
                self.assertEqual(state["live"], {CAP: "TunerFailed", BUDGET: "TunerFailed"})
                self.assertNotIn("steps", state)
                self.assertEqual(put(tuner, 4)["error"]["reason"], "NotWritable")
                self.assertEqual(scheduler.max_num_active_reqs, 16)

    def test_an_error_of_the_scheduler_is_the_schedulers(self) -> None:
        scheduler = make_scheduler()
        tuner = tuned(scheduler)
        with self.assertRaises(AttributeError):
            scheduler.update_from_output(None, None)
        self.assertEqual(tuner.failed, "")


def boom(*_: Any) -> None:
    raise RuntimeError("boom")


def is_prefill(scheduled: Any, name: str) -> bool:
    new = any(request.req_id == name for request in scheduled.scheduled_new_reqs)
    return new or scheduled.scheduled_cached_reqs.is_context_phase(name)


if __name__ == "__main__":
    unittest.main()

"""The tuner on vLLM's real schedulers: what a change does to running requests, and what it never does."""

from __future__ import annotations

import json
import logging
import time
import unittest
from typing import Any, NoReturn

from vllm.v1.core.sched.scheduler import Scheduler

from harness import Clock, Loop, both, make_config, make_request, make_scheduler, put, tuned
from llamaserver_tuner.scheduler import SchedulerPort
from llamaserver_tuner.setpoints import BUDGET, CAP


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

    def test_under_a_small_budget_a_step_after_a_decode_only_one_looks_at_no_request(self) -> None:
        class Unread(list[Any]):
            def __iter__(self) -> NoReturn:
                raise AssertionError("the requests were looked at")

        for scheduler in both(seqs=16):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                put(tuner, 16, 24)
                for i in range(8):
                    scheduler.add_request(make_request(f"r{i}", 40, 100))
                while any(r.is_prefill_chunk for r in scheduler.running) or len(scheduler.running) < 8:
                    loop.step()
                for _ in range(3):
                    loop.step()
                running, scheduler.running = scheduler.running, Unread(scheduler.running)
                tuner.before_step()
                scheduler.running = running
                self.assertEqual((tuner.failed, scheduler.max_num_scheduled_tokens), ("", 24))
                scheduler.add_request(make_request("long", 300, 5))
                loop.step()
                scheduler.running = Unread(scheduler.running)
                with self.assertRaises(AssertionError):
                    tuner.before_step()

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
        scheduler = make_scheduler()
        del scheduler.max_num_scheduled_tokens
        self.assertEqual(self.live(scheduler), ("", "NoAttribute"))
        tuner = tuned(scheduler)
        self.assertEqual(tuner.read()[BUDGET], 512)
        self.assertEqual(put(tuner, 4, 256)["error"]["field"], BUDGET)
        self.assertEqual((put(tuner, 4)[CAP], hasattr(scheduler, "max_num_scheduled_tokens")), (4, False))

    def test_where_requests_do_not_tell_a_prompt_from_a_decode_the_budget_is_not_live_once_one_runs(
        self,
    ) -> None:
        for name in ("is_prefill_chunk", "num_computed_tokens"):
            with self.subTest(name):
                scheduler = make_scheduler()
                tuner, loop = tuned(scheduler), Loop(scheduler)
                self.assertEqual(put(tuner, 4, 64)[BUDGET], 64)
                scheduler.add_request(make_request("r", 20, 30))
                loop.step()
                delattr(scheduler.running[0], name)
                state = tuner.read()
                self.assertEqual(state["live"], {CAP: "", BUDGET: "NoAttribute"})
                self.assertEqual((state[CAP], state[BUDGET], state["failed"]), (4, 512, ""))
                refused = put(tuner, 4, 64)["error"]
                self.assertEqual((refused["reason"], refused["field"]), ("NotWritable", BUDGET))
                self.assertEqual((put(tuner, 3)[CAP], scheduler.max_num_scheduled_tokens), (3, 512))
                self.assertEqual(self.live(scheduler), ("", "NoAttribute"))

    def test_what_requests_do_not_tell_is_found_by_a_step_too(self) -> None:
        scheduler = make_scheduler()
        tuner, loop = tuned(scheduler), Loop(scheduler)
        put(tuner, 4, 64)
        scheduler.add_request(make_request("r", 20, 30))
        loop.step()
        del scheduler.running[0].is_prefill_chunk
        tuner.before_step()
        self.assertEqual((scheduler.max_num_scheduled_tokens, tuner.failed), (512, ""))
        self.assertEqual(tuner.port.limits.live, {CAP: "", BUDGET: "NoAttribute"})

    def test_a_threshold_for_long_prompts_that_changes_with_their_number_keeps_the_budget(self) -> None:
        config = make_config(long_prefill_token_threshold=64, long_prefill_token_threshold_adaptive=True)
        self.assertEqual(self.live(make_scheduler(config)), ("", "AdaptivePrefillThreshold"))

    def test_an_encoder_that_reads_all_of_its_input_first_keeps_the_budget(self) -> None:
        scheduler = make_scheduler()
        scheduler.is_encoder_decoder = True
        self.assertEqual(self.live(scheduler), ("", "EncoderDecoder"))
        tuner = tuned(scheduler)
        self.assertEqual(put(tuner, 4, 64)["error"]["reason"], "NotWritable")
        self.assertEqual((put(tuner, 4)[CAP], scheduler.max_num_scheduled_tokens), (4, 512))

    def test_speculation_its_look_ahead_and_block_alignment_raise_the_smallest_budget(self) -> None:
        scheduler = make_scheduler(make_config(drafts=3))
        self.assertEqual(SchedulerPort(scheduler).limits.min_budget(4), 16)
        scheduler.num_prefill_lookahead = 2
        self.assertEqual(SchedulerPort(scheduler).limits.min_budget(4), 18)
        scheduler.need_mamba_block_aligned_split = True
        self.assertEqual(SchedulerPort(scheduler).limits.min_budget(4), 34)
        threshold = make_scheduler(make_config(long_prefill_token_threshold=100))
        self.assertEqual(SchedulerPort(threshold).limits.min_budget(4), 4)


class Failure(unittest.TestCase):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)

    def tearDown(self) -> None:
        logging.disable(logging.NOTSET)

    def test_an_error_in_the_tuner_leaves_the_engine_as_it_was_started(self) -> None:
        for broken in ("before_step", "_after_step", "_after_schedule", "_before_arrival"):
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


if __name__ == "__main__":
    unittest.main()

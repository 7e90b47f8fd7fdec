"""What the tuner counts on vLLM's real schedulers, against vLLM's own count: steps, gauges, lengths."""

from __future__ import annotations

import random
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import Request
from vllm.v1.utils import compute_iteration_details

from harness import Clock, Loop, both, make_config, make_request, make_scheduler, put, tuned
from llamaserver_tuner.scheduler import WAITING_LOOKED_AT, shape_of
from llamaserver_tuner.setpoints import BUDGET, CAP


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

    def test_an_engine_that_was_told_to_pause_says_so(self) -> None:
        scheduler = make_scheduler()
        tuner = tuned(scheduler)
        self.assertIs(tuner.read()["paused"], False)
        for state in (PauseState.PAUSED_NEW, PauseState.PAUSED_ALL):
            scheduler.set_pause_state(state)
            self.assertIs(tuner.read()["paused"], True)

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
        self.assertEqual(state["max_model_len"], scheduler.max_model_len)
        self.assertEqual(stats.num_waiting_reqs + stats.num_skipped_waiting_reqs, state["waiting"])
        kv = state["kv"]
        self.assertEqual((kv["block_size"], kv["num_blocks"], kv["used_blocks"]), (16, 100, 12))
        self.assertAlmostEqual(kv["used_blocks"] / kv["num_blocks"], stats.kv_cache_usage)


class Deferred(unittest.TestCase):
    """Requests that vLLM has put aside: what of them waits for something else than room."""

    def structured(self, name: str, grammar: object) -> Request:
        only = {"structured_outputs": StructuredOutputsParams(regex="a*")}
        request = make_request(name, 20, 10, sampling=only)
        assert request.structured_output_request is not None
        request.structured_output_request.grammar = grammar
        return request

    def test_a_scheduler_that_does_not_tell_what_they_wait_for_counts_them_all_and_the_tuner_works_on(
        self,
    ) -> None:
        for name, spoil in SPOILED.items():
            with self.subTest(name):
                scheduler = make_scheduler()
                tuner = tuned(scheduler)
                put(tuner, 4, 64)
                request = self.structured("r", GRAMMAR)
                scheduler.deferred_waiting.add(request)
                self.assertEqual(tuner.read()["waiting_deferred"], 0)
                spoil(scheduler, request)
                state = tuner.read()
                self.assertEqual((state["waiting_deferred"], state["failed"]), (1, ""))
                self.assertEqual((state[CAP], state[BUDGET]), (4, 64))

    def test_of_very_many_some_are_looked_at_and_stand_for_the_rest(self) -> None:
        class Queue(list[Request]):
            looked_at = 0

            def __iter__(self) -> Iterator[Request]:
                for request in super().__iter__():
                    self.looked_at += 1
                    yield request

        scheduler = make_scheduler()
        tuner = tuned(scheduler)
        compiled, compiling = self.structured("r", GRAMMAR), self.structured("c", Future[Any]())
        for count, deferred in ((WAITING_LOOKED_AT, 64), (8 * WAITING_LOOKED_AT, 512)):
            queue = Queue([compiling, compiled, compiled, compiled] * (count // 4))
            scheduler.deferred_waiting = queue
            self.assertEqual(tuner.read()["waiting_deferred"], deferred)
            self.assertEqual(queue.looked_at, WAITING_LOOKED_AT)


class Lengths(unittest.TestCase):
    def test_what_runs_and_waits_is_told_with_what_it_may_still_generate(self) -> None:
        """The model is 2048 tokens long: who may fill it, asked for or not, is bounded by nothing."""
        for scheduler in both(seqs=4):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                for i in range(6):
                    scheduler.add_request(make_request(f"r{i}", 20 + i, 50))
                scheduler.add_request(make_request("unset", 40, 2048 - 40))
                for _ in range(10):
                    loop.step()
                told = tuner.read()["lengths"]
                running = scheduler.running
                generated = sum(len(r.output_token_ids) for r in running)
                self.assertGreater(generated, 4 * 7)
                self.assertEqual(told["running"]["bounded"], sums(4, 86, generated, 200))
                self.assertEqual(told["running"]["unbounded"], sums(0, 0, 0, 0))
                self.assertEqual(told["waiting"]["bounded"], sums(2, 49, 0, 100))
                self.assertEqual(told["waiting"]["unbounded"], sums(1, 40, 0, 2008))
                loop.drain()
                self.assertEqual(tuner.read()["lengths"]["running"]["bounded"], sums(0, 0, 0, 0))

    def test_preempted_requests_are_looked_at_with_what_they_have_generated(self) -> None:
        scheduler = make_scheduler(make_config(seqs=8), blocks=40)
        tuner, loop = tuned(scheduler), Loop(scheduler)
        for i in range(8):
            scheduler.add_request(make_request(f"r{i}", 40, 100))
        while not tuner.preemptions:
            loop.step()
        told = tuner.read()["lengths"]["waiting"]["bounded"]
        self.assertGreater(told["generated_tokens"], 0)

    def test_of_a_long_queue_the_front_is_looked_at(self) -> None:
        for policy in ("fcfs", "priority"):
            with self.subTest(policy):
                scheduler = make_scheduler(make_config(seqs=2, policy=policy))
                tuner = tuned(scheduler)
                for i in range(WAITING_LOOKED_AT):
                    scheduler.add_request(make_request(f"r{i}", 20, 50))
                for i in range(20):
                    scheduler.add_request(make_request(f"late{i}", 20, 500))
                state = tuner.read()
                self.assertEqual(state["waiting"], WAITING_LOOKED_AT + 20)
                self.assertEqual(state["lengths"]["waiting"]["bounded"]["requests"], WAITING_LOOKED_AT)
                self.assertLess(state["lengths"]["waiting"]["bounded"]["max_tokens"], 256 * 60)

    def test_a_release_whose_requests_do_not_tell_says_null_and_works_on(self) -> None:
        scheduler = make_scheduler()
        tuner, loop = tuned(scheduler), Loop(scheduler)
        scheduler.add_request(make_request("r", 20, 30))
        loop.step()
        del scheduler.running[0].max_tokens
        state = tuner.read()
        self.assertIsNone(state["lengths"])
        self.assertEqual((state["failed"], state["running"]), ("", 1))


class Uncompiled:
    """A grammar that says what went wrong whenever it is asked for."""

    @property
    def grammar(self) -> object:
        raise ValueError("no such rule")


def without_slots(scheduler: Any, _: Any) -> None:
    """Let adapters be served in a number of slots that nobody tells."""
    scheduler.lora_config = SimpleNamespace(slots=1)
    runs_adapted(scheduler, SimpleNamespace(lora_int_id=1))


def unnumbered(scheduler: Any, _: Any) -> None:
    """Let an adapter run that has no number."""
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    runs_adapted(scheduler, SimpleNamespace(name="adapter"))


def runs_adapted(scheduler: Any, adapter: Any) -> None:
    request = make_request("adapted", 20, 10)
    request.lora_request = adapter
    scheduler.running.append(request)


GRAMMAR = SimpleNamespace(accept_tokens=lambda *_: True)
SPOILED: dict[str, Callable[[Any, Any], None]] = {
    "a status without a name": lambda _, request: setattr(request, "status", 1),
    "no grammar": lambda _, request: setattr(request, "structured_output_request", None),
    "a grammar that raises": lambda _, request: setattr(request, "structured_output_request", Uncompiled()),
    "no number of slots": without_slots,
    "adapters without a number": unnumbered,
}
"""What another release or another class may make of a scheduler or a request."""


def is_prefill(scheduled: Any, name: str) -> bool:
    new = any(request.req_id == name for request in scheduled.scheduled_new_reqs)
    return new or scheduled.scheduled_cached_reqs.is_context_phase(name)


def sums(requests: int, prompt: int, generated: int, most: int) -> dict[str, int]:
    return {
        "requests": requests,
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "max_tokens": most,
    }


if __name__ == "__main__":
    unittest.main()

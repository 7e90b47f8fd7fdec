"""The laws of both knobs (`walk.py`) in every configuration that changes whom vLLM schedules, and in which
order."""

from __future__ import annotations

import random
import unittest
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from vllm.config.lora import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request
from walk import CHUNK, Walk

from harness import BLOCK, Loop, both, make_config, make_request, make_scheduler, put, tuned
from llamaserver_tuner.engine import EngineTuner
from llamaserver_tuner.setpoints import BUDGET

COUNT = 60
SMALL_CACHE = 60
"""Blocks: room for three of the longest."""


def cases(seeds: int = 2, blocks: int = 2000, **config: Any) -> Iterator[tuple[Scheduler, random.Random]]:
    """Both schedulers with some seeds."""
    for seed in range(seeds):
        for kind in (False, True):
            yield make_scheduler(make_config(asynchronous=kind, **config), blocks), random.Random(seed)


def some(rng: random.Random, **other: Any) -> list[Request]:
    """Requests of all lengths."""
    return [make_request(f"r{i}", rng.randint(1, 300), rng.randint(2, 80), **other) for i in range(COUNT)]


def told(tuner: EngineTuner) -> tuple[int, int, int]:
    state = tuner.read()
    return state["running"], state["waiting"], state["waiting_deferred"]


class Stock(Walk):
    def test_plain(self) -> None:
        for scheduler, rng in cases(seeds=5):
            self.assertEqual(self.walk(scheduler, rng, some(rng)).preemptions, 0)

    def test_with_a_kv_cache_that_is_too_small(self) -> None:
        for scheduler, rng in cases(blocks=SMALL_CACHE):
            self.assertGreater(self.walk(scheduler, rng, some(rng)).preemptions, 0)

    def test_with_prefixes_that_prompts_share(self) -> None:
        for scheduler, rng in cases(caching=True):
            self.share(scheduler, rng)

    def share(self, scheduler: Scheduler, rng: random.Random) -> None:
        """What is found in the cache is no prefill, and is read like any other context."""
        requests = []
        for i in range(COUNT):
            shared = [7] * rng.randint(1, 200) if i % 2 else []
            prompt = shared + [rng.randint(8, 500) for _ in range(rng.randint(1, 100))]
            requests.append(make_request(f"r{i}", prompt, rng.randint(2, 80), cached=True))
        prompts = {r.request_id: r.num_prompt_tokens for r in requests}
        hits = computed = 0

        def look(_: EngineTuner, output: Any) -> None:
            nonlocal hits, computed
            hits += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
            for name, tokens in output.num_scheduled_tokens.items():
                before = scheduler.requests[name].num_computed_tokens - tokens
                computed += max(0, min(tokens, prompts[name] - before))

        self.assertEqual(self.walk(scheduler, rng, requests, look=look).preemptions, 0)
        self.assertGreater(hits, 10 * BLOCK)
        self.assertEqual(hits + computed, sum(prompts.values()))


class Priorities(Walk):
    def requests(self, rng: random.Random) -> list[Request]:
        return [
            make_request(f"r{i}", rng.randint(1, 300), rng.randint(2, 80), priority=rng.randint(0, 3))
            for i in range(COUNT)
        ]

    def test_with_room_for_all_nobody_is_preempted(self) -> None:
        for scheduler, rng in cases(policy="priority"):
            self.assertEqual(self.walk(scheduler, rng, self.requests(rng)).preemptions, 0)

    def test_under_a_small_kv_cache_the_lowest_go_and_come_back(self) -> None:
        for scheduler, rng in cases(policy="priority", blocks=SMALL_CACHE):
            self.pressed(scheduler, rng)

    def pressed(self, scheduler: Scheduler, rng: random.Random) -> None:
        requests = self.requests(rng)
        level = {r.request_id: r.priority for r in requests}

        def look(_: EngineTuner, output: Any) -> None:
            gone = [level[name] for name in output.preempted_req_ids]
            stay = [r.priority for r in scheduler.running]
            if gone and stay:
                self.assertGreaterEqual(min(gone), max(stay))

        self.assertGreater(self.walk(scheduler, rng, requests, look=look).preemptions, 0)


class LongPrompts(Walk):
    """`--long-prefill-token-threshold` leaves tokens to those behind a long prompt, who soon decode there."""

    def test_any_order_of_changes(self) -> None:
        for threshold in (16, 64):
            for scheduler, rng in cases(long_prefill_token_threshold=threshold):
                self.walk(scheduler, rng, some(rng))

    def test_a_budget_that_is_lowered_behind_several_long_prompts_starves_no_decode(self) -> None:
        for scheduler in both(seqs=8, long_prefill_token_threshold=64):
            with self.subTest(type(scheduler).__name__):
                tuner, loop = tuned(scheduler), Loop(scheduler)
                for i in range(3):
                    scheduler.add_request(make_request(f"long{i}", 700 + 100 * i, 30))
                for i in range(5):
                    scheduler.add_request(make_request(f"short{i}", 4, 100))
                for _ in range(2):
                    loop.submit(self.step(scheduler))
                self.assertEqual(len(scheduler.running), 8)
                state = put(tuner, 8, 8 + CHUNK)
                self.assertEqual(state["min_num_scheduled_tokens"], 8)
                self.assertEqual((state["wanted"][BUDGET], state[BUDGET]), (8 + CHUNK, 3 * 64 + 5))
                while any(r.is_prefill_chunk for r in scheduler.running):
                    loop.submit(self.step(scheduler))
                loop.submit(self.step(scheduler))
                self.assertEqual(scheduler.max_num_scheduled_tokens, 8 + CHUNK)
                loop.drain()
                self.assertEqual(set(loop.tokens.values()), {30, 100})


class Speculation(Walk):
    DRAFTS = 3

    def test_every_decode_gets_its_drafts_too(self) -> None:
        for scheduler, rng in cases(drafts=self.DRAFTS):
            loop = Loop(scheduler, accepted=partial(rng.randint, 0))
            drafted = 0

            def look(_: EngineTuner, output: Any) -> None:
                nonlocal drafted
                drafted += sum(map(len, output.scheduled_spec_decode_tokens.values()))

            tuner = self.walk(scheduler, rng, some(rng), loop, look)
            self.assertEqual(tuner.port.limits.min_budget(4), 4 * (1 + self.DRAFTS))
            self.assertGreater(drafted, 1000)

    def test_the_smallest_budget_is_all_that_a_full_batch_drafts(self) -> None:
        for scheduler in both(seqs=8, drafts=self.DRAFTS):
            loop = Loop(scheduler, accepted=lambda drafts: drafts)
            tuner = tuned(scheduler)
            for i in range(8):
                scheduler.add_request(make_request(f"r{i}", 20, 200))
            for _ in range(4):
                loop.step()
            self.assertEqual(put(tuner, 8, 31)["error"]["field"], BUDGET)
            self.assertEqual(put(tuner, 8, 32)[BUDGET], 32)
            for _ in range(10):
                self.assertEqual(loop.submit(self.step(scheduler)).total_num_scheduled_tokens, 32)


class Adapters(Walk):
    def adapter(self, number: int) -> LoRARequest:
        return LoRARequest(f"adapter{number}", number, "/nowhere")

    def config(self, kind: bool, seqs: int = 16) -> Any:
        config = make_config(seqs, asynchronous=kind)
        config.lora_config = LoRAConfig(max_loras=1)
        return config

    def test_with_two_adapters_and_one_slot_nobody_starves(self) -> None:
        for kind in (False, True):
            self.mix(make_scheduler(self.config(kind)), random.Random(kind))

    def mix(self, scheduler: Scheduler, rng: random.Random) -> None:
        requests = some(rng)
        for request in requests:
            number = rng.randint(0, 2)
            request.lora_request = self.adapter(number) if number else None
        put_aside = 0

        def look(tuner: EngineTuner, _: Any) -> None:
            nonlocal put_aside
            active = {r.lora_request.lora_int_id for r in scheduler.running if r.lora_request}
            self.assertLessEqual(len(active), 1)
            other = [r for r in scheduler.deferred_waiting if r.lora_request.lora_int_id not in active]
            self.assertEqual(told(tuner)[2], len(other) if active else 0)
            put_aside = max(put_aside, len(other))

        self.walk(scheduler, rng, requests, look=look)
        self.assertGreater(put_aside, 2)

    def test_who_waits_for_the_cap_once_its_adapter_runs_is_not_deferred(self) -> None:
        for kind in (False, True):
            scheduler = make_scheduler(self.config(kind, seqs=2))
            tuner, loop = tuned(scheduler), Loop(scheduler)
            scheduler.add_request(make_request("first", 20, 5, lora_request=self.adapter(1)))
            for i in range(4):
                scheduler.add_request(make_request(f"r{i}", 20, 50, lora_request=self.adapter(2)))
            loop.step()
            self.assertEqual(told(tuner), (1, 4, 4))
            while "first" not in loop.finished:
                loop.step()
            for _ in range(3):
                loop.step()
            self.assertEqual((told(tuner), len(scheduler.deferred_waiting)), ((2, 2, 0), 2))
            loop.drain()
            self.assertEqual(len(loop.finished), 5)


class Grammars(Walk):
    """Requests whose output follows a grammar, which somebody compiles meanwhile."""

    GRAMMAR = SimpleNamespace(accept_tokens=lambda *_: True)

    def structured(self, name: str, prompt: int, output: int) -> tuple[Request, Future[Any]]:
        only = {"structured_outputs": StructuredOutputsParams(regex="a*")}
        request, grammar = make_request(name, prompt, output, sampling=only), Future[Any]()
        assert request.structured_output_request is not None
        request.structured_output_request.grammar = grammar
        return request, grammar

    def test_a_request_that_waits_for_its_grammar_is_deferred_and_holds_nobody_up(self) -> None:
        for scheduler, rng in cases():
            self.compiled_meanwhile(scheduler, rng)

    def compiled_meanwhile(self, scheduler: Scheduler, rng: random.Random) -> None:
        requests, compiling = [], []
        for request in some(rng):
            if rng.random() < 0.5:
                size = request.num_prompt_tokens, request.max_tokens
                request, grammar = self.structured(request.request_id, *size)
                compiling.append(grammar)
            requests.append(request)
        deferred = set()

        def look(tuner: EngineTuner, _: Any) -> None:
            self.assertEqual(told(tuner)[2], len(compiling))
            deferred.add(len(compiling))
            if compiling and rng.random() < 0.3:
                compiling.pop(rng.randrange(len(compiling))).set_result(self.GRAMMAR)

        self.walk(scheduler, rng, requests, look=look)
        self.assertGreater(len(deferred), 5)

    def test_who_waits_for_the_cap_once_its_grammar_is_there_is_not_deferred(self) -> None:
        for scheduler in both(seqs=4):
            tuner, loop = tuned(scheduler), Loop(scheduler)
            put(tuner, 1)
            scheduler.add_request(make_request("plain", 20, 50))
            loop.step()
            grammars = []
            for i in range(3):
                request, grammar = self.structured(f"r{i}", 20, 10)
                scheduler.add_request(request)
                grammars.append(grammar)
            loop.step()
            self.assertEqual(told(tuner), (1, 3, 3))
            for grammar in grammars:
                grammar.set_result(self.GRAMMAR)
            loop.step()
            self.assertEqual((told(tuner), len(scheduler.deferred_waiting)), ((1, 3, 0), 3))
            loop.drain()
            self.assertEqual(loop.tokens, {"plain": 50, "r0": 10, "r1": 10, "r2": 10})


class Images(Walk):
    """Prompts with images in them, an encoder that takes one or two at a time, and a cache for a few more."""

    prompts_get_on = False

    def seeing(self, kind: bool, compute: int = 128, cache: int = 256) -> Scheduler:
        """The stock scheduler with the limits that it would take from a model that sees."""
        config = make_config(8, 2048, asynchronous=kind, is_multimodal_model=True)
        scheduler = make_scheduler(config)
        scheduler.max_num_encoder_input_tokens = compute
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=cache)
        return scheduler

    def looking(self, name: str, at: dict[int, int], prompt: int, output: int) -> Request:
        """A request with an image of so many tokens at each of these places."""
        images = [
            MultiModalFeatureSpec(None, "image", f"{name}@{place}", PlaceholderRange(place, length))
            for place, length in at.items()
        ]
        return make_request(name, prompt, output, mm_features=images)

    def test_images_anywhere_and_an_encoder_that_is_short_of_room(self) -> None:
        for seed in range(3):
            for kind in (False, True):
                rng = random.Random(seed)
                requests = []
                for i in range(COUNT):
                    first, second = rng.randint(10, 110), rng.randint(10, 110)
                    at = rng.choice([{}, {3: first}, {3: first, 120: second}])
                    requests.append(self.looking(f"r{i}", at, rng.randint(231, 250), rng.randint(2, 80)))
                encoded = 0

                def look(_: EngineTuner, output: Any) -> None:
                    nonlocal encoded
                    encoded += sum(map(len, output.scheduled_encoder_inputs.values()))

                self.walk(self.seeing(kind), rng, requests, look=look)
                self.assertGreaterEqual(encoded, sum(len(r.mm_features) for r in requests))

    def test_an_image_longer_than_the_budget_is_encoded_once_and_read_in_chunks(self) -> None:
        for kind in (False, True):
            scheduler = self.seeing(kind, compute=2048, cache=2048)
            tuner, loop = tuned(scheduler), Loop(scheduler)
            for i in range(3):
                scheduler.add_request(make_request(f"r{i}", 10, 200))
            loop.step()
            put(tuner, 4, 4 + CHUNK)
            scheduler.add_request(self.looking("seeing", {20: 600}, 700, 5))
            outputs = []
            while "seeing" not in loop.finished:
                outputs.append(self.step(scheduler))
                loop.submit(outputs[-1])
            chunks = [o.num_scheduled_tokens.get("seeing", 0) for o in outputs]
            self.assertEqual(sum(1 for o in outputs if o.scheduled_encoder_inputs), 1)
            self.assertLessEqual(max(chunks), 1 + CHUNK)
            self.assertGreater(len(chunks), 70)


class Ranks(Walk):
    """Data parallelism: ranks that are told to leave prompts to a later step, so that all have them in the
    same."""

    throttled = 0.6

    def test_any_order_of_changes(self) -> None:
        for scheduler, rng in cases(caching=True):
            self.walk(scheduler, rng, some(rng, cached=True))

    def test_what_is_admitted_behind_a_prompt_that_was_left_for_later_decodes_on(self) -> None:
        for scheduler in both(caching=True):
            tuner, loop = tuned(scheduler), Loop(scheduler)
            known = [7] * (4 * BLOCK + 1)
            scheduler.add_request(make_request("first", known, 200, cached=True))
            for _ in range(3):
                loop.submit(self.step(scheduler))
            put(tuner, 16, 16 + CHUNK)
            scheduler.add_request(make_request("long", [8] * 300, 5, cached=True))
            loop.submit(self.step(scheduler))
            scheduler.add_request(make_request("second", known, 100, cached=True))
            loop.submit(self.step(scheduler, throttle=True))
            self.assertEqual([r.request_id for r in scheduler.running], ["first", "long", "second"])
            loop.submit(self.step(scheduler))
            self.assertGreater(scheduler.max_num_scheduled_tokens, 16 + CHUNK)
            while len(scheduler.running) > 2:
                loop.submit(self.step(scheduler))
            self.assertEqual(scheduler.max_num_scheduled_tokens, 16 + CHUNK)
            loop.drain()


class Chunks(Walk):
    """Prompts that may not be cut anywhere."""

    def test_chunks_that_end_on_a_blocks_edge(self) -> None:
        """Short prompts slip in behind a long one, with what the edge leaves."""
        for scheduler, rng in cases():
            scheduler.need_mamba_block_aligned_split = True
            sizes = [rng.choice([rng.randint(1, 10), rng.randint(100, 300)]) for _ in range(COUNT)]
            requests = [make_request(f"r{i}", size, rng.randint(2, 80)) for i, size in enumerate(sizes)]
            self.assertEqual(self.walk(scheduler, rng, requests).port.limits.chunk_reserve, BLOCK)

    def test_chunks_that_may_not_end_just_before_the_prompts_end(self) -> None:
        for scheduler, rng in cases():
            scheduler.num_prefill_lookahead = 4
            self.walk(scheduler, rng, some(rng))


if __name__ == "__main__":
    unittest.main()

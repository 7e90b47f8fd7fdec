"""The stat logger on vLLM's real statistics, made by vLLM's own code from a real scheduler's outputs."""

from __future__ import annotations

import time
import unittest
from typing import Any

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats, SchedulerStats

from harness import Loop, make_config, make_request, make_scheduler
from llamaserver_tuner import stats as stats_module
from llamaserver_tuner.stats import TunerStatLogger
from llamaserver_tuner.totals import Collected


class FrontEnd:
    """vLLM's output processor, as far as statistics go: one RequestStateStats a request, one
    IterationStats a step."""

    def __init__(self, logger: TunerStatLogger) -> None:
        self.logger = logger
        self.requests: dict[str, RequestStateStats] = {}
        self.prompts: dict[str, int] = {}
        self.latencies: list[float] = []

    def add(self, name: str, prompt: int) -> None:
        self.requests[name] = RequestStateStats(arrival_time=time.time())
        self.prompts[name] = prompt

    def process(self, outputs: Any, engine: int = 0) -> None:
        iteration = IterationStats()
        for one in outputs.outputs:
            state = self.requests[one.request_id]
            iteration.update_from_output(
                one,
                outputs.timestamp,
                state.num_generation_tokens == 0,
                state,
                LoRARequestStates(),
                None,
            )
            if one.finish_reason is not None:
                iteration.update_from_finished_request(
                    one.finish_reason, one.request_id, self.prompts[one.request_id], None, state
                )
        self.latencies += iteration.inter_token_latencies_iter
        self.logger.record(SchedulerStats(), iteration, mm_cache_stats=None, engine_idx=engine)


class Statistics(unittest.TestCase):
    def setUp(self) -> None:
        self.collected = stats_module.COLLECTED = Collected()

    def test_vllm_takes_it_for_a_logger_of_all_engines(self) -> None:
        self.assertTrue(issubclass(TunerStatLogger, AggregateStatLoggerBase))
        logger = TunerStatLogger(vllm_config=None, engine_indexes=[0, 1])
        self.assertEqual((set(self.collected.engines), self.collected.reason), ({0, 1}, ""))
        # What vLLM's manager calls on every logger besides record().
        logger.log_engine_initialized()
        logger.log()
        logger.record_sleep_state(0, 0)
        logger.record_admission_rejection("max_num_queued_reqs")

    def test_every_token_and_request_is_counted(self) -> None:
        scheduler = make_scheduler(make_config(seqs=4, tokens=64))
        loop, front = Loop(scheduler), FrontEnd(TunerStatLogger(None, [0]))
        for i in range(10):
            front.add(f"r{i}", 20 + i)
            scheduler.add_request(make_request(f"r{i}", 20 + i, 1 + 5 * i))
        loop.drain()
        for outputs in loop.outputs:
            front.process(outputs)
        got = self.collected.engines[0].to_json()
        tokens = sum(1 + 5 * i for i in range(10))
        self.assertEqual((got["generation_tokens"], got["generation_tokens_finished"]), (tokens, tokens))
        self.assertEqual((got["prompt_tokens"], got["prompt_tokens_finished"]), (245, 245))
        self.assertEqual(got["finished"], {"stop": 0, "length": 10, "abort": 0, "error": 0})
        self.assertEqual((got["itl"]["count"], got["ttft"]["count"]), (tokens - 10, 10))
        self.assertAlmostEqual(got["itl"]["sum"], sum(front.latencies), places=9)
        self.assertEqual((got["tpot"]["count"], got["queue"]["count"]), (9, 10))

    def test_what_requests_were_allowed_is_told_where_it_says_something(self) -> None:
        """The model of the configuration is 2048 tokens long."""
        logger = TunerStatLogger(make_config(), [0])
        iteration = IterationStats()
        for most in (100, 300, 2038, None):
            state = RequestStateStats(num_generation_tokens=50)
            iteration.update_from_finished_request(FinishReason.STOP, "r", 10, most, state)
        logger.record(None, iteration)
        got = self.collected.engines[0].to_json()
        names = ("bounded_finished", "max_tokens_bounded_finished", "generation_tokens_bounded_finished")
        self.assertEqual([got[name] for name in names], [2, 400, 100])

    def test_a_cached_prompt_is_told_from_a_computed_one(self) -> None:
        config = make_config()
        config.cache_config.enable_prefix_caching = True
        scheduler = make_scheduler(config)
        loop, front = Loop(scheduler), FrontEnd(TunerStatLogger(None, [0]))
        for i in range(2):
            request = make_request(f"r{i}", 64, 4)
            request.block_hashes = [bytes([block]) * 32 for block in range(4)]
            front.add(f"r{i}", 64)
            scheduler.add_request(request)
            loop.drain()
        for outputs in loop.outputs:
            front.process(outputs)
        got = self.collected.engines[0].to_json()
        self.assertEqual((got["prompt_tokens"], got["cached_prompt_tokens"]), (128, 48))

    def test_reasons_are_vllms_words(self) -> None:
        logger = TunerStatLogger(None, [0])
        iteration = IterationStats()
        for reason in FinishReason:
            iteration.update_from_finished_request(reason, "r", 5, None, RequestStateStats())
        logger.record(None, iteration)
        finished = self.collected.engines[0].to_json()["finished"]
        self.assertEqual(finished, dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 1))

    def test_an_engine_output_without_statistics_is_nothing(self) -> None:
        logger = TunerStatLogger(None, [0])
        logger.record(SchedulerStats(), None)
        self.assertEqual(self.collected.reason, "")

    def test_a_changed_class_ends_the_statistics_and_not_the_server(self) -> None:
        logger = TunerStatLogger(None, [0])
        iteration = IterationStats()
        del iteration.inter_token_latencies_iter
        logger.record(None, iteration)
        self.assertEqual(self.collected.reason, "StatisticsChanged")


if __name__ == "__main__":
    unittest.main()

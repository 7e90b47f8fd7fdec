"""What the requests of one engine saw, accumulated in the API server from vLLM's per-step statistics.

vLLM says that `IterationStats` and `FinishedRequestStats` are not stable. They are read here alone, attribute
by attribute, and the caller treats a missing one as the end of these statistics, never as a zero.
"""

from __future__ import annotations

from typing import Any

from llamaserver_tuner.digest import Digest

_REASONS = ("stop", "length", "abort", "error")


class RequestTotals:
    """Cumulative figures of one engine's requests. One thread writes and reads: the API server's event
    loop."""

    def __init__(self, longest: int | None = None) -> None:
        """`longest` is the model's length in tokens; None where it is not known."""
        self.itl = Digest()
        self.tpot = Digest()
        self.ttft = Digest()
        self.queue = Digest()
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(_REASONS, 0)
        self.prompt_tokens_finished = 0
        self.generation_tokens_finished = 0
        self.bounded: list[int] | None = [0, 0, 0]
        """Finished requests whose `max_tokens` says something: how many, what they were allowed, and what
        they generated. None when this release does not tell."""
        self._longest = longest

    def add(self, stats: Any) -> None:
        """Add the `IterationStats` of one step."""
        self.itl.add_all(stats.inter_token_latencies_iter)
        self.generation_tokens += stats.num_generation_tokens
        if stats.time_to_first_tokens_iter:
            self.ttft.add_all(stats.time_to_first_tokens_iter)
            prompts = stats.prompt_token_stats
            self.prompt_tokens += prompts.total
            self.cached_prompt_tokens += prompts.cached_tokens
        for request in stats.finished_requests:
            self._add_finished(request)

    def _add_finished(self, request: Any) -> None:
        reason = str(request.finish_reason)
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.prompt_tokens_finished += request.num_prompt_tokens
        self.generation_tokens_finished += request.num_generation_tokens
        self._add_bounded(request)
        if request.num_generation_tokens:
            self.queue.add(request.queued_time)
        if request.num_generation_tokens > 1:
            self.tpot.add(request.mean_time_per_output_token)

    def _add_bounded(self, request: Any) -> None:
        """Who asked for no limit was given the rest of the model's length, which says nothing."""
        if self.bounded is None:
            return
        try:
            most: int | None = request.max_tokens_param
        except AttributeError:
            self.bounded = None
            return
        if most is None or (self._longest is not None and request.num_prompt_tokens + most >= self._longest):
            return
        self.bounded[0] += 1
        self.bounded[1] += most
        self.bounded[2] += request.num_generation_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the form of the snapshot."""
        finished, allowed, generated = self.bounded or (None, None, None)
        return {
            "itl": self.itl.to_json(),
            "tpot": self.tpot.to_json(),
            "ttft": self.ttft.to_json(),
            "queue": self.queue.to_json(),
            "itl_events": self.itl.count,
            "prompt_tokens": self.prompt_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "finished": dict(self.finished),
            "prompt_tokens_finished": self.prompt_tokens_finished,
            "generation_tokens_finished": self.generation_tokens_finished,
            "bounded_finished": finished,
            "max_tokens_bounded_finished": allowed,
            "generation_tokens_bounded_finished": generated,
        }


class Collected:
    """The totals of all engines that this process hears of, and why there are none if there are none."""

    def __init__(self) -> None:
        self.engines: dict[int, RequestTotals] = {}
        self.reason = "StatLoggerMissing"
        self._longest: int | None = None

    def start(self, engines: list[int], longest: int | None = None) -> None:
        """Begin to collect for these engines, of a model of that length (tokens; None if it is not known)."""
        self._longest = longest
        for engine in engines:
            self.engines.setdefault(engine, RequestTotals(longest))
        self.reason = ""

    def add(self, engine: int, stats: Any) -> None:
        """Add one step's `IterationStats`; stop collecting for good if it is not what it was written for."""
        if self.reason:
            return
        try:
            totals = self.engines.get(engine)
            if totals is None:
                totals = self.engines[engine] = RequestTotals(self._longest)
            totals.add(stats)
        except Exception:
            self.reason = "StatisticsChanged"
            raise


COLLECTED = Collected()
"""Of this process: the stat logger writes it, the endpoint reads it."""

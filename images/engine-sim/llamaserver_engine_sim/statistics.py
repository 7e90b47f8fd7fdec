"""What the front end counts in one step, under the names of vLLM's own classes: the tuner reads them, too."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PromptTokens:
    """Prompt tokens of a step, and those of them that were found in the prefix cache."""

    total: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class FinishedRequest:
    """One request that ended, as vLLM's statistics describe it. Times in seconds."""

    finish_reason: str
    num_prompt_tokens: int
    num_generation_tokens: int
    max_tokens_param: int
    e2e_latency: float
    queued_time: float
    prefill_time: float
    decode_time: float

    @property
    def inference_time(self) -> float:
        """From admission to the last token."""
        return self.prefill_time + self.decode_time

    @property
    def mean_time_per_output_token(self) -> float:
        """0 for a single token, as vLLM has it."""
        after_first = self.num_generation_tokens - 1
        return self.decode_time / after_first if after_first > 0 else 0.0


@dataclass
class IterationStats:
    """What one step gave to the clients."""

    num_generation_tokens: int = 0
    prompt_token_stats: PromptTokens = field(default_factory=PromptTokens)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    finished_requests: list[FinishedRequest] = field(default_factory=list)

"""The stat-logger plugin: hands vLLM's per-step statistics to `totals`.

vLLM refuses to start with a stat logger that is not its subclass, so the base class is imported here, in the
module of the entry point. It calls `record` in the API server's event loop for every engine output.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase  # type: ignore[import-not-found]

from llamaserver_tuner.totals import COLLECTED

logger = logging.getLogger("vllm.llamaserver_tuner")


class TunerStatLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """Entry point of `vllm.stat_logger_plugins`: one object for all engines of this API server."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        longest = getattr(getattr(vllm_config, "model_config", None), "max_model_len", None)
        COLLECTED.start(list(engine_indexes), longest)

    def record(
        self,
        scheduler_stats: Any,  # noqa: ARG002 - vLLM's signature
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002 - vLLM's signature
        engine_idx: int = 0,
    ) -> None:
        """Add one engine output's statistics. Never raises: vLLM would end the server."""
        if iteration_stats is None:
            return
        try:
            COLLECTED.add(engine_idx, iteration_stats)
        except Exception:
            logger.exception("the statistics of requests are not as expected; the tuner stops reporting them")

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

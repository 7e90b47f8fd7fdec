"""What an engine that does not start leaves behind for Kubernetes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaserver.controller.lastwords import cause_of_death
from llamaserver_tuner.lastwords import LONGEST, LastWords, listen, words_of


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """vLLM's log, as it was before when the test is over."""
    found = logging.getLogger("vllm")
    before = list(found.handlers)
    yield found
    found.handlers = before


@pytest.fixture
def termination_log(tmp_path: Path, logger: logging.Logger) -> Path:
    """An empty termination log that is listened for, as the kubelet makes it."""
    path = tmp_path / "termination-log"
    path.touch()
    logger.addHandler(LastWords(path))
    return path


def fail(logger: logging.Logger, words: str, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logger.exception(words)


CACHE = ValueError(
    "To serve at least one request with the models's max seq len (262144), (36.0 GiB KV cache is needed, "
    "which is "
    "larger than the available KV cache memory (6.94 GiB). Based on the available memory, the estimated "
    "maximum "
    "model length is 50512."
)


def test_the_first_process_that_fails_says_why(logger: logging.Logger, termination_log: Path) -> None:
    child = logging.getLogger("vllm.v1.executor.multiproc_executor")
    fail(child, "WorkerProc failed to start.", CACHE)
    fail(logger, "EngineCore failed to start.", RuntimeError("another"))
    said = termination_log.read_text()
    assert "another" not in said
    death = cause_of_death(said)
    assert death is not None
    assert "at most 50512 would fit" in death.advice


def test_an_error_that_only_tells_of_another_is_none(logger: logging.Logger, termination_log: Path) -> None:
    second = RuntimeError("WorkerProc initialization failed due to an exception in a background process.")
    fail(logger, "EngineCore failed to start.", second)
    assert termination_log.read_text() == ""
    fail(logger, "WorkerProc failed to start.", CACHE)
    assert "36.0 GiB" in termination_log.read_text()


def test_an_error_that_is_not_fatal_is_not_what_an_engine_died_of(
    logger: logging.Logger, termination_log: Path
) -> None:
    fail(logger, "Error in a request", ValueError("a bad prompt"))
    logger.error("EngineCore failed to start.")
    assert termination_log.read_text() == ""


def test_nothing_is_made_where_kubernetes_has_made_nothing(tmp_path: Path, logger: logging.Logger) -> None:
    path = tmp_path / "termination-log"
    logger.addHandler(LastWords(path))
    fail(logger, "EngineCore failed to start.", CACHE)
    assert not path.exists()


def test_a_log_that_cannot_be_written_hurts_nobody(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: LastWords, words: str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(LastWords, "_write", full)
    logger.addHandler(LastWords(tmp_path / "termination-log"))
    fail(logger, "EngineCore failed to start.", CACHE)


def test_the_causes_of_an_error_are_told_and_no_more_than_fits() -> None:
    try:
        try:
            raise MemoryError("CUDA out of memory")
        except MemoryError as error:
            raise RuntimeError("warming up " + "x" * 100) from error
    except RuntimeError as error:
        assert words_of(error).endswith("MemoryError: CUDA out of memory")
    assert len(words_of(ValueError("é" * 10_000)).encode()) <= LONGEST


def test_listening_twice_is_listening_once(logger: logging.Logger) -> None:
    listen()
    listen()
    assert sum(isinstance(handler, LastWords) for handler in logger.handlers) == 1

"""Progress is told to who watches, and never before there is something to wait for."""

from __future__ import annotations

import io

import pytest

from llamaserver.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("llamaserver.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_what_is_short_says_nothing(clock: list[float]) -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        clock[0] += 1.9
        progress.tell("default", 0.9)
    assert stream.getvalue() == ""


def test_a_terminal_sees_one_line_that_goes_away(clock: list[float]) -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        for share in (0.25, 0.5):
            clock[0] += 2.5
            progress.tell("default", share)
    assert "default:  25 %" in stream.getvalue()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_log_gets_a_line_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        for share in range(31):
            clock[0] += 1.0
            progress.tell("aimd", share / 100)
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 4
    assert lines[0].startswith("aimd:")

"""`llamaserver replay`: how mistakes in its options are answered, before any Prometheus is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llamaserver.cli.main import main

URL = "http://127.0.0.1:9"


def call(*args: str, **env: str) -> Any:
    return CliRunner().invoke(main, ["replay", *args], env=env)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Missing option '--prometheus'"),
        (["--prometheus", "prometheus:9090"], "write it as http://localhost:9090"),
        (["--prometheus", "http://me:secret@host:9090"], "--header Authorization=VARIABLE"),
        (["--prometheus", URL, "--start", "yesterday"], "write it as 2026-05-01T10:00"),
        (
            ["--prometheus", URL, "--start", "2026-05-02", "--end", "2026-05-01"],
            "--start is not before --end",
        ),
        (["--prometheus", URL, "--start", "2026-05-02", "--last", "6h"], "exclude each other"),
        (["--prometheus", URL, "--end", "2999-01-01"], "in the future"),
        (
            ["--prometheus", URL, "--last", "6"],
            "a positive number and one unit (ms, s, m or h), e.g. 50ms, 90s or 24h (got '6')",
        ),
        (["--prometheus", URL, "--step", "1.5s"], "no whole number of seconds"),
        (["--prometheus", URL, "--header", "X-Scope-OrgID"], "write it as NAME=VARIABLE"),
        (["--prometheus", URL, "--header", "X-Scope-OrgID=UNSET_HERE"], "UNSET_HERE is not set"),
        (["--prometheus", URL, "--token-file", "nowhere"], "does not exist"),
        (["--prometheus", URL, "--min", "3", "--max", "2"], "--min 3 is more than --max 2"),
        (["--prometheus", URL, "--profile", "fit,speed=2"], "a profile has no 'speed'"),
        (["--prometheus", URL, "--profile", "B200"], "there are H100-8B"),
        (["--prometheus", URL, "--objective", "p95"], "as p95:40ms"),
    ],
)
def test_a_mistake_is_answered_with_the_cure(args: list[str], says: str) -> None:
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert "secret@" not in result.output


@pytest.mark.parametrize("value", ["Basic secret\nX: y", "Basic s\u00e9cret", " "])
def test_a_header_that_cannot_be_sent_is_refused_without_being_shown(value: str) -> None:
    result = call("--prometheus", URL, "--header", "Authorization=HEADER", HEADER=value)
    assert result.exit_code == 2
    assert "what HEADER holds" in result.output
    assert "cret" not in result.output


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    empty = tmp_path / "token"
    empty.write_text("\n")
    result = call("--prometheus", URL, "--token-file", str(empty))
    assert result.exit_code == 2
    assert "holds no token" in result.output


def test_nobody_at_the_address() -> None:
    result = call("--prometheus", URL)
    assert result.exit_code == 1
    assert "cannot be reached" in result.output
    assert "Traceback" not in result.output


def test_help_shows_examples_and_says_what_is_read() -> None:
    text = call("--help").output
    assert "llamaserver replay --prometheus http://localhost:9090 --last 6h" in text
    assert "Nothing is written to" in " ".join(text.split())

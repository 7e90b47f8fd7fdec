"""What is said of a Prometheus that cannot be reached, does not let one in, or is none."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from llamaserver.prometheus import CURES, Access, Prometheus, PrometheusError

EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})


class Answers:
    """A server that gives the answers it is told, one after another, and keeps what it was asked."""

    def __init__(self) -> None:
        self.wanted: list[tuple[int, str]] = []
        self.asked: list[Any] = []
        self.delay_s = 0.0
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.asked.append(self)
                time.sleep(answers.delay_s)
                status, body = answers.wanted[min(len(answers.asked), len(answers.wanted)) - 1]
                with contextlib.suppress(BrokenPipeError):  # who waits no longer is gone
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def ask(url: str, **more: Any) -> list[Any]:
    with Prometheus(Access(url, **more)) as prometheus:
        return prometheus.matrix("up", 0, 60, 15)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (
            401,
            "",
            "answered 401: it wants to know who asks",
        ),
        (403, '{"error": "not yours"}', "answered 403 (not yours)"),
        (400, '{"error": "parse error"}', "refuses the query (parse error): check --selector"),
        (422, '{"error": "too many samples"}', "ask for less with --last or --step"),
        (
            404,
            "nothing",
            "does not answer as a Prometheus does: give the address below which /api/v1/query is",
        ),
        (200, "<html>Sign in</html>", "does not answer as a Prometheus does"),
        (200, '{"status": "success"}', "does not answer as a Prometheus does"),
        (200, "[]", "does not answer as a Prometheus does"),
        (500, "", "answered 500"),
    ],
)
def test_an_answer_that_is_none_is_told_with_the_cure(
    answers: Answers, status: int, body: str, says: str
) -> None:
    answers.wanted = [(status, body)]
    with pytest.raises(PrometheusError) as caught:
        ask(answers.url)
    assert says in str(caught.value)
    assert f"--prometheus {answers.url}" in str(caught.value)


def test_who_is_busy_is_asked_again(answers: Answers) -> None:
    answers.wanted = [(503, ""), (200, EMPTY)]
    assert ask(answers.url) == []
    assert len(answers.asked) == 2


def test_who_stays_busy_is_not_asked_for_ever(answers: Answers) -> None:
    answers.wanted = [(503, '{"error": "query timed out"}')]
    with pytest.raises(PrometheusError, match=r"answered 503 \(query timed out\)"):
        ask(answers.url)
    assert len(answers.asked) == 3


def test_headers_are_sent_and_not_told(answers: Answers) -> None:
    answers.wanted = [(200, EMPTY)]
    access = Access(answers.url, {"Authorization": "Bearer hush"})
    with Prometheus(access) as prometheus:
        prometheus.matrix("up", 0, 60, 15)
    assert answers.asked[0].headers["Authorization"] == "Bearer hush"
    assert "hush" not in repr(access)


def test_nobody_there(answers: Answers) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
    with pytest.raises(PrometheusError, match=r"cannot be reached .*refused.*port-forward"):
        ask(url)


def test_who_does_not_answer_in_time(answers: Answers) -> None:
    answers.wanted, answers.delay_s = [(200, EMPTY)], 0.3
    with pytest.raises(PrometheusError, match=r"did not answer within 0\.05 s.*raise --timeout"):
        ask(answers.url, timeout_s=0.05)


def test_a_certificate_that_nobody_signed(api_server: Any) -> None:
    with pytest.raises(PrometheusError, match=r"certificate is not trusted.*--ca-file"):
        ask(api_server.url)
    with pytest.raises(PrometheusError, match="answered 401"):
        ask(api_server.url, ca_file=api_server.ca_file)


def test_without_the_library_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_api_client", None)
    with pytest.raises(PrometheusError, match="pip install prometheus-api-client"):
        ask("http://127.0.0.1:9")


def test_what_is_no_number_is_told_as_such(answers: Answers) -> None:
    values = [[1, "1.5"], [2, "NaN"], [3, "+Inf"], [4, "odd"]]
    result = [{"metric": {"pod": "a"}, "values": values}]
    answers.wanted = [(200, json.dumps({"status": "success", "data": {"result": result}}))]
    (series,) = ask(answers.url)
    assert series.labels == {"pod": "a"}
    assert [repr(v) for _, v in series.points] == ["1.5", "nan", "inf", "nan"]


def test_a_token_that_is_replaced_is_used_at_the_next_question(answers: Answers, tmp_path: Path) -> None:
    answers.wanted = [(200, EMPTY)]
    token = tmp_path / "token"
    with Prometheus(Access(answers.url, token_file=token)) as prometheus:
        for text in ("first\n", "second\n"):
            token.write_text(text)
            assert prometheus.samples("up[1m]", 10.0) == []
        token.unlink()
        with pytest.raises(PrometheusError, match=f"--token-file {token} cannot be read: No such file"):
            prometheus.samples("up[1m]", 10.0)
    assert [one.headers["Authorization"] for one in answers.asked] == ["Bearer first", "Bearer second"]


def test_messages_name_the_options_of_whoever_asks(answers: Answers) -> None:
    answers.wanted = [(401, "")]
    access = Access(answers.url, retries=0, cures=CURES)
    with Prometheus(access) as prometheus, pytest.raises(PrometheusError) as caught:
        prometheus.samples("up[1m]", 10.0)
    assert "prometheus.tokenSecret of the chart" in str(caught.value)
    assert "--header" not in str(caught.value)

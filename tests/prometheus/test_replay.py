"""`llamaserver replay` on a real Prometheus: what it finds, and what it says where there is nothing."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import xml.etree.ElementTree as ET
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llamaserver.cli.main import main
from llamaserver.observe.series import SCRAPED_AT
from llamaserver.prometheus import Access, Asked, Prometheus, PrometheusError, Reading, read, reading
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.replay.timeline import history
from running_prometheus import running_prometheus


def call(filled: Any, *more: str) -> Any:
    times = ("--start", str(int(filled.start)), "--end", str(int(filled.end)))
    return CliRunner().invoke(main, ["replay", "--prometheus", filled.url, *times, *more])


def said(result: Any) -> str:
    return " ".join(result.output.split())


def test_the_history_is_rebuilt_and_the_law_holds_what_was_missed(filled: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = call(filled, "--model", "m", "--profile", "CPU", "--output", str(out))
    assert result.exit_code == 0, result.output
    assert "the plant, llamaserver" in result.stdout
    assert "What this history cannot tell:" in result.stdout
    assert "Scrapes are 10 s apart" in said(result)
    found = json.loads((out / "replay.json").read_text())
    assert found["plant"]["trusted"], found["plant"]
    assert found["demand"]["requests"] == pytest.approx(len(filled.requests), rel=0.02)
    low, high = found["history"]["violated_window_share"]
    assert low - 0.1 <= found["as_it_was"]["violated_window_share"] <= high + 0.1
    assert found["llamaserver"]["violated_window_share"] < 0.05 < low
    page = (out / "replay.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace(filled.url, "")
    for plot in page.split("<svg")[1:]:
        drawing = ET.fromstring("<svg" + plot.split("</svg>")[0] + "</svg>")
        assert "nan" not in ET.tostring(drawing, encoding="unicode").lower()


def test_a_plant_is_fitted_where_none_is_given(filled: Any) -> None:
    result = call(filled, "--selector", '{namespace="chat"}', "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["profile"]["name"] == "fitted to the history"
    assert found["profile"]["kv_tokens"] == 60_000
    assert found["profile"]["a"] == pytest.approx(6.4e-3, rel=0.2)
    assert abs(found["plant"]["errors"]["itl_mean"]) < 0.05


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "serve 2 models (m, other), which are not one fleet: choose one with --model"),
        (("--model", "none"), "There are the models m, other, in the namespaces batch, chat: change --model"),
        (("--selector", 'namespace="none"'), "There are the models m, other"),
        (("--selector", "namespace=none"), "refuses the query"),
        (("--model", "m", "--step", "600s"), "too few points"),
        (("--model", "m", "--profile", "H100-8B,max_num_seqs=8"), "H100-8B,max_num_seqs=32"),
    ],
)
def test_a_mistake_is_answered_with_the_cure(filled: Any, args: tuple[str, ...], says: str) -> None:
    result = call(filled, *args)
    assert result.exit_code == 1, result.output
    assert says in said(result)


def test_a_time_without_engines_names_those_of_other_times(filled: Any) -> None:
    result = CliRunner().invoke(main, ["replay", "--prometheus", filled.url, "--last", "30m"])
    assert result.exit_code == 1
    assert "At other times there are the models m, other: change --start, --end or --last" in said(result)


def test_long_histories_are_read_in_pieces(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(int(filled.start), int(filled.end), model="m")

    def values() -> dict[str, list[Any]]:
        with Prometheus(Access(filled.url)) as prometheus:
            found = read(prometheus, asked, lambda *_: None)
        assert found.step == 10
        return {
            name: sorted((sorted(s.labels.items()), [*s.points]) for s in some)
            for name, some in found.recorded.items()
        }

    whole = values()
    assert len(whole["num_requests_running"][0][1]) == 61
    monkeypatch.setattr(reading, "CHUNK", 7)
    assert values() == whole


def test_what_real_scrapes_saw_is_what_the_engine_did(prometheus_programs: Path, tmp_path: Path) -> None:
    """An engine in real time, scraped every second: the requests that came are counted one by one."""
    with (
        Served() as engine,
        running_prometheus(prometheus_programs, tmp_path, engine.as_target()) as url,
        Prometheus(Access(url)) as prometheus,
    ):
        found = _scraped(prometheus, scrapes=5)
    assert found.step == 1
    told = history(found.recorded, found.start, found.end - found.start, found.step)
    tokens = [value for _, value in found.recorded["generation_tokens_total"][0].points]
    came = sum(i.came for i in told.intervals)
    assert came == engine.arrived_at[tokens[-1]] - engine.arrived_at[tokens[0]] > 0
    assert told.restarts == 0
    assert [r.kv_tokens for r in told.replicas] == [CPU_24M.kv_tokens]


class Served:
    """An engine behind /metrics, which runs in real time and remembers how many requests had come at each
    scrape, by its count of tokens.
    """

    def __init__(self) -> None:
        self.engine = Engine(CPU_24M)
        self.began = time.monotonic()
        self.arrived_at: dict[float, int] = {}
        served = self

        class Metrics(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = served.scraped().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Metrics)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def scraped(self) -> str:
        self.engine.load(rate=8.0)
        self.engine.run_until(time.monotonic() - self.began)
        self.arrived_at[float(self.engine.generation_tokens)] = self.engine.arrived
        return speech.metrics(self.engine)

    def as_target(self) -> str:
        targets = f"[{{targets: ['127.0.0.1:{self.server.server_port}']}}]"
        return f"scrape_configs:\n- job_name: vllm\n  static_configs: {targets}\n"

    def __enter__(self) -> Served:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def _scraped(prometheus: Prometheus, scrapes: int) -> Reading:
    """What a Prometheus has once there are so many scrapes."""
    deadline = time.monotonic() + 60.0
    while True:
        now = int(time.time())
        with contextlib.suppress(PrometheusError):
            found = read(prometheus, Asked(now - 60, now, step=1), lambda *_: None)
            at = {at for series in found.recorded[SCRAPED_AT] for _, at in series.points}
            if len(at) >= scrapes:
                return found
        assert time.monotonic() < deadline
        time.sleep(0.5)

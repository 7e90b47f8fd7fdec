"""What is run in the cluster beside the operator."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.bench import bounded
from demo.load import Shape
from demo.settings import parse
from demo.toolbox import RUN_BENCH, StreamsResult, Toolbox
from harness.kube import KubeError
from harness.streams import parser
from harness.wait import until

SHAPE = Shape(concurrency=3, prompt=(32, 256), output=(60, 300), seed=7)


class Kube:
    """Starts a program of its own in the place of kubectl."""

    def __init__(self, program: str = "") -> None:
        self.program = program
        self.args: tuple[str, ...] = ()

    def start_kubectl(self, *args: str) -> subprocess.Popen[str]:
        self.args = args
        return subprocess.Popen([sys.executable, "-c", self.program], stdout=subprocess.PIPE, text=True)


def toolbox(kube: Kube, tmp_path: Path) -> Toolbox:
    return Toolbox(kube, parse(["--output", str(tmp_path)]), "http://10.0.0.1:80")  # type: ignore[arg-type]


def test_the_client_is_started_with_flags_that_it_knows(tmp_path: Path) -> None:
    kube = Kube()
    toolbox(kube, tmp_path).start_streams(SHAPE, 5.0).communicate()
    flags = kube.args[kube.args.index("/files/streams.py") + 1 :]
    understood = parser().parse_args(flags)
    assert (understood.concurrency, understood.seconds, understood.seed) == (3, 5.0, 7)
    assert (understood.prompt_min, understood.prompt_max) == SHAPE.prompt
    assert (understood.output_min, understood.output_max) == SHAPE.output
    assert understood.drop


def test_the_last_line_of_json_is_the_result() -> None:
    said = 'a warning\n{"at": 1}\n{"streams": 9, "cut": 1, "causes": {"HTTP 503": 1}, "tokens": 4}\n'
    assert StreamsResult.parse(said) == StreamsResult(9, 1, {"HTTP 503": 1})
    with pytest.raises(KubeError, match="without a result"):
        StreamsResult.parse("Traceback ...\n")


def test_a_client_that_fails_or_hangs_is_told_apart_from_one_that_ends(tmp_path: Path) -> None:
    good = """print('{"streams": 2, "cut": 0, "causes": {}}')"""
    one = toolbox(Kube(good), tmp_path)
    assert one.finish(one.start_streams(SHAPE, 1.0), 30).streams == 2
    one = toolbox(Kube("raise SystemExit(3)"), tmp_path)
    with pytest.raises(KubeError, match="ended with 3"):
        one.finish(one.start_streams(SHAPE, 1.0), 30)
    one = toolbox(Kube("import time; time.sleep(60)"), tmp_path)
    with pytest.raises(KubeError, match="did not end"):
        one.finish(one.start_streams(SHAPE, 1.0), 0.1)


def test_a_long_answer_is_read_while_it_comes(tmp_path: Path) -> None:
    told: list[int] = []
    kube = Kube("import time; print('x' * 300_000); time.sleep(1.5)")
    process = toolbox(kube, tmp_path).start_streams(SHAPE, 1.0)
    said = Toolbox.said(process, 30, lambda: told.append(1))
    assert len(said.strip()) == 300_000
    assert told


def test_an_order_reaches_the_benchmark_and_its_result_comes_back(tmp_path: Path) -> None:
    order, result = tmp_path / "order.json", tmp_path / "result"
    with subprocess.Popen(
        ["sh", "-c", RUN_BENCH, "sh", '{"seconds": 5}', str(order), str(result)], stdout=subprocess.PIPE
    ) as process:
        until("the order", order.exists, 10)
        assert json.loads(order.read_text()) == {"seconds": 5}
        (tmp_path / "part").write_text("packed")
        (tmp_path / "part").rename(result)
        assert process.communicate(timeout=10)[0] == b"packed"
    assert not result.exists()


def test_the_benchmark_is_started_in_its_own_pod(tmp_path: Path) -> None:
    kube = Kube()
    toolbox(kube, tmp_path).start_bench(SHAPE, 62.0).communicate()
    assert kube.args[:2] == ("exec", "bench")
    asked = json.loads(next(word for word in kube.args if word.startswith("{")))
    assert asked["seconds"] == 62.0
    assert asked["flags"][asked["flags"].index("--max-concurrency") + 1] == "3"


async def test_a_run_ends_by_the_clock() -> None:
    async def send(request_func_input: float, session: None, pbar: None = None) -> str:
        await asyncio.sleep(request_func_input)
        return "whole"

    request = bounded(send, lambda at: "ended", 0.3)
    first = [request(request_func_input=seconds, session=None) for seconds in (0.01, 5.0)]
    assert await asyncio.gather(*first) == ["whole", "ended"]
    assert await request(request_func_input=0.0, session=None) == "ended"

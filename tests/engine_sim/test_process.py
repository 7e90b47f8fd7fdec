"""The simulator as the process that a container runs: started with flags, and ended by SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from engine_sim.sim import PROFILE, body

CLIENTS_OF_VLLM = sorted((Path(__file__).resolve().parent / "clients").glob("check_*.py"))
VLLM_PYTHON = os.environ.get("LLAMASERVER_VLLM_PYTHON", "")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "llamaserver_engine_sim", "tiny", "--host=127.0.0.1", "--port=0"]
    command += [f"--profile={PROFILE}", "--speed=0.5", "--enforce-eager", "--dtype", "float32"]
    with subprocess.Popen(
        command, env={"PYTHONPATH": ":".join(sys.path)}, stderr=subprocess.PIPE, text=True
    ) as started:
        yield started
        if started.poll() is None:
            started.kill()


def url(process: subprocess.Popen[str]) -> str:
    """Where it listens, from its log, once it does."""
    assert process.stderr is not None
    for line in process.stderr:
        if "serving" in line:
            return f"http://127.0.0.1:{line.split()[-1]}"
    raise AssertionError("it ended before it served")


async def test_sigterm_ends_it_when_its_streams_have_ended(process: subprocess.Popen[str]) -> None:
    address = url(process)
    async with aiohttp.ClientSession() as session:
        asked = body(max_tokens=100, stream=True)
        async with session.post(f"{address}/v1/completions", json=asked) as response:
            await response.content.readline()
            process.send_signal(signal.SIGTERM)
            rest = await response.text()
    assert rest.count('"text":') == 99
    assert rest.endswith("data: [DONE]\n\n")
    assert await asyncio.to_thread(process.wait, 20) == 0


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "llamaserver_engine_sim", "tiny", *arguments],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_does_nothing_is_named_and_what_cannot_be_is_refused() -> None:
    done = started("--enforce-eager", "--host=192.0.2.1", "--port=1")
    assert "these arguments do nothing here: --enforce-eager" in done.stderr
    assert "cannot listen at 192.0.2.1:1" in done.stderr
    assert done.returncode != 0
    done = started("--profile=abacus")
    assert "there is no profile 'abacus'" in done.stderr
    assert done.returncode == 2


@pytest.mark.skipif(not VLLM_PYTHON, reason="LLAMASERVER_VLLM_PYTHON does not name an environment with vLLM")
@pytest.mark.parametrize("checks", CLIENTS_OF_VLLM, ids=lambda path: path.stem)
def test_clients_that_come_with_vllm(checks: Path, process: subprocess.Popen[str]) -> None:
    """The openai package is in vLLM's environment alone."""
    done = subprocess.run(
        [VLLM_PYTHON, "-W", "ignore", checks, url(process)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Runs `engine/check_*.py` in vLLM's own environment, against the real wheel.

vLLM is never installed beside the operator. LLAMASERVER_VLLM_PYTHON names the interpreter of an environment
that has it; `make test` builds that environment and sets the variable. The checks are unittest, because
nothing but vLLM is installed there, and the tuner is laid out for them as an image delivers it. To import
vLLM takes half a minute, so all that can share a process do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TUNER = HERE.parents[1] / "images" / "tuner"
PYTHON = os.environ.get("LLAMASERVER_VLLM_PYTHON", "")

ALONE = "check_plugins"
"""What loads plugins into the process it runs in."""
TOGETHER = sorted(path.stem for path in (HERE / "engine").glob("check_*.py") if path.stem != ALONE)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuner")
    subprocess.run([sys.executable, TUNER / "stage.py", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.skipif(not PYTHON, reason="LLAMASERVER_VLLM_PYTHON does not name an environment with vLLM")
@pytest.mark.parametrize("checks", [[ALONE], TOGETHER], ids=["plugins", "scheduler"])
def test_inside_vllm(checks: list[str], staged: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(staged), str(HERE / "engine"))),
        "VLLM_LOGGING_LEVEL": "CRITICAL",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-m", "unittest", "-v", *checks],
        env=environment,
        cwd=staged,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert "\nRan 0 tests" not in report, report

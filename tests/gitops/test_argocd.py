"""The health check for Argo CD, by its own test data, in the Lua that Argo CD speaks (5.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from lupa import lua51

from llamaserver.api import ConditionType, Reason, parse
from llamaserver.control.types import Cause

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "argocd"
CHECK = (FOLDER / "health.lua").read_text()
HEALTH = {"Healthy", "Progressing", "Degraded", "Suspended"}


class Case(NamedTuple):
    """One resource and what is to be said of it."""

    path: Path
    status: str
    message: str


CASES = [
    Case(FOLDER / test["inputPath"], test["healthStatus"]["status"], test["healthStatus"]["message"])
    for test in yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]
]


def health(obj: dict[str, Any]) -> tuple[str, str]:
    """What Argo CD would say: it sets `obj` and runs the script with few libraries."""
    runtime = lua51.LuaRuntime(register_eval=False)
    runtime.execute("os, io, package, require, debug = nil, nil, nil, nil, nil")
    runtime.globals().obj = runtime.table_from(obj, recursive=True)
    found = runtime.execute(CHECK)
    return str(found.status), str(found.message)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path.stem)
def test_every_state_has_its_health(case: Case) -> None:
    status, message = health(yaml.safe_load(case.path.read_text()))
    assert (status, message) == (case.status, case.message)
    assert status in HEALTH


def test_all_test_data_is_used_and_every_health_is_tested() -> None:
    assert {case.path for case in CASES} == set((FOLDER / "testdata").glob("*.yaml"))
    assert {case.status for case in CASES} == HEALTH


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path.stem)
def test_the_test_data_is_what_the_operator_writes(case: Case) -> None:
    server = parse(yaml.safe_load(case.path.read_text()))
    words = {*Reason, *Cause}
    for condition in server.status.conditions or ():
        assert condition.type in set(ConditionType)
        assert condition.reason in words


@pytest.mark.parametrize("conditions", [None, [], [{"type": "Odd", "status": "True"}]])
def test_a_status_that_says_little_is_no_error(conditions: Any) -> None:
    status = {"observedGeneration": 1} | ({} if conditions is None else {"conditions": conditions})
    assert health({"metadata": {"generation": 1}, "spec": {}, "status": status})[0] == "Progressing"

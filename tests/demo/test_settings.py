"""What the demo can be told, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.modes import BOTH, CAP_ALONE, OFF
from demo.release import helm_values, split
from demo.settings import parse


def test_the_projects_own_cluster_needs_nothing() -> None:
    settings = parse([])
    assert settings.cluster == "own"
    assert settings.runtime_class == "vllm"
    assert settings.operator_image == "localhost/llamaserver/operator:dev"


def test_the_users_cluster_needs_images_it_can_pull(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--cluster", "current", "--operator-image", "example/operator:1"])
    said = capsys.readouterr().err
    assert "--tuner-image" in said
    assert "--engine-image" in said
    assert "--operator-image," not in said


def test_the_environment_speaks_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPERATOR", "TUNER", "ENGINE"):
        monkeypatch.setenv(f"DEMO_{name}_IMAGE", f"registry.example:5000/{name.lower()}:2")
    settings = parse(["--cluster", "current", "--tuner-image", "other/tuner:3"])
    assert settings.engine_image == "registry.example:5000/engine:2"
    assert settings.tuner_image == "other/tuner:3"
    assert settings.runtime_class is None
    assert "tuner.image.tag=3" in helm_values(settings)


def test_a_registrys_port_is_no_tag() -> None:
    assert split("registry.example:5000/operator:2") == ("registry.example:5000/operator", "2")
    with pytest.raises(ValueError, match="REPOSITORY:TAG"):
        split("registry.example:5000/operator")


def test_the_report_goes_to_where_it_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["--output", "there"]).output == tmp_path / "there"


def test_the_help_says_what_a_users_cluster_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "images/engine-cpu/Containerfile" in said
    assert "DEMO_ENGINE_IMAGE" in said


def test_each_run_says_what_stands_in_the_resource() -> None:
    assert OFF.spec == "tuning.mode: Off"
    assert CAP_ALONE.spec == "tuning.mode: Auto, prefillBudget: Fixed"
    assert BOTH.spec == "tuning.mode: Auto, prefillBudget: Auto"

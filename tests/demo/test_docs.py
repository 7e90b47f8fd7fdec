"""docs/demo.md, as it is made from what a demo has left."""

from __future__ import annotations

from pathlib import Path

from demo import docs
from demo.report import Place, Report


def test_the_documents_page_is_made_from_what_a_demo_left(left: Path, tmp_path: Path) -> None:
    target = tmp_path / "docs"
    assert docs.main(["--report", str(left), "--docs", str(target)]) == 0
    text = (target / "demo.md").read_text()
    assert "| tokens per second | 1000 | 700 | 1000 |" in text
    assert "43 % more tokens per second than with the cap alone" in text
    assert "$ kubectl get lls -o wide\nNAME READY BUDGET" in text
    assert "$" not in text.replace("$ kubectl", "")
    assert (target / "images" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_recording_of_another_run_is_refused(left: Path, report: Report, capsys) -> None:
    moved = report.auto.model_copy(update={"place": Place(start=9e5, end=9e5 + 70)})
    other = report.model_copy(update={"auto": moved})
    (left / "report.json").write_text(other.model_dump_json())
    assert docs.main(["--report", str(left), "--docs", str(left / "docs")]) == 1
    assert "another run" in capsys.readouterr().err
    assert not (left / "docs").exists()

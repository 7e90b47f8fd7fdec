"""The reference pages name every word of the API, and no word that is none."""

from __future__ import annotations

import re
from pathlib import Path

from llamaserver.api import ConditionType, Reason
from llamaserver.api.crd import crd
from llamaserver.api.managed import MANAGED, MERGED_VARIABLES, METRICS_VARIABLE, SECRET_VARIABLES
from llamaserver.control.types import Cause
from specs.fields import leaves

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESOURCE = (DOCS / "resource.md").read_text()
STATUS = (DOCS / "status-reference.md").read_text()
VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]


def test_every_field_of_the_spec_is_described() -> None:
    missing = []
    for path in leaves(SCHEMA["spec"], "spec"):
        parent, _, last = path.rpartition(".")
        if f"`{path}`" not in RESOURCE and not ("[]" in parent and f"`{last}`" in RESOURCE):
            missing.append(path)
    assert missing == []


def test_no_field_is_described_that_is_not_there() -> None:
    known = set(leaves(SCHEMA["spec"], "spec"))
    mentioned = set(re.findall(r"`(spec\.[A-Za-z.\[\]]+)`", RESOURCE + STATUS))
    assert {
        path
        for path in mentioned
        if not any(field == path or field.startswith((f"{path}.", f"{path}[")) for field in known)
    } == set()


def test_every_refused_argument_and_variable_is_described() -> None:
    flags = [flag for entry in MANAGED for flag in entry.flags]
    words = [*flags, *SECRET_VARIABLES, *MERGED_VARIABLES, METRICS_VARIABLE]
    assert [word for word in words if f"`{word}`" not in RESOURCE] == []


def rows(heading: str) -> list[str]:
    """The first words of the table below a heading."""
    section = re.split(rf"^##+ {heading}$", STATUS, flags=re.M)[1]
    section = re.split(r"^##+ ", section, flags=re.M)[0]
    return re.findall(r"^\| `([A-Za-z]+)` \|", section, re.M)


def test_every_condition_has_its_section() -> None:
    assert rows("Conditions") == [str(kind) for kind in ConditionType]
    for kind in ConditionType:
        assert rows(kind.value), kind


def test_every_reason_is_listed_and_no_other() -> None:
    listed = {reason for kind in ConditionType for reason in rows(kind.value)}
    assert listed == {reason.value for reason in Reason}


def test_every_cause_is_listed_and_no_other() -> None:
    assert set(rows("Causes")) == {cause.value for cause in Cause}


def test_every_column_is_listed() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        assert re.search(rf"\b{re.escape(column['name'].upper())}\b", STATUS), column["name"]


def test_every_field_of_the_status_is_described_where_its_section_is() -> None:
    """By its whole path, or by its name in the row that begins with its section."""
    missing = []
    for path in leaves(SCHEMA["status"], "status"):
        section, _, name = path.rpartition(".")
        row = re.search(rf"^\| (?:`[^`]+`, )*`{re.escape(section)}`.*$", STATUS, re.M)
        if f"`{path}`" not in STATUS and not (row and f"`{name}`" in row[0]):
            missing.append(path)
    assert missing == []


def test_no_field_of_the_status_is_described_that_is_not_there() -> None:
    known = set(leaves(SCHEMA["status"], "status"))
    mentioned = set(re.findall(r"`(status\.[A-Za-z.\[\]]+)`", RESOURCE + STATUS))
    assert {
        path
        for path in mentioned
        if not any(field == path or field.startswith((f"{path}.", f"{path}[")) for field in known)
    } == set()

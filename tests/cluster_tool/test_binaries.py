"""The programs are pinned, and say which version they are."""

import re

import pytest

from cluster import binaries
from cluster.binaries import MODULES, Module


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_every_program_is_named_by_a_tool_directive(module: Module) -> None:
    text = (module.folder / "go.mod").read_text()
    if module.target == ".":
        assert (module.folder / "main.go").exists()
        return
    tools = re.findall(r"^(?:tool\s+|\t)(\S+)$", text, re.M)
    names = {re.sub(r"/v\d+$", "", tool).rpartition("/")[2] for tool in tools}
    assert {module.renamed.get(name, name) for name in names} >= set(module.programs)
    assert (module.folder / "go.sum").exists(), "nothing pins the content"


def test_kubernetes_reports_the_version_it_is_built_from() -> None:
    (kubernetes,) = (module for module in MODULES if module.name == "kubernetes")
    required = re.search(r"k8s.io/kubernetes (v\S+)", (kubernetes.folder / "go.mod").read_text())
    assert required is not None
    assert f"-X {binaries.KUBERNETES_VERSION_PACKAGE}.gitVersion={required[1]} " in kubernetes.ldflags() + " "


def test_a_module_that_changes_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = MODULES[0]
    before = module.fingerprint()
    monkeypatch.setattr(Module, "ldflags", lambda _: "-s")
    assert module.fingerprint() != before

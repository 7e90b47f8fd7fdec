"""The programs are pinned, and say which version they are."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import binaries
from cluster.binaries import MODULES, OTHERS, Module
from cluster.errors import ClusterError
from cluster.settings import PACKAGE, Settings


@pytest.mark.parametrize("module", [*MODULES, *OTHERS.values()], ids=lambda module: module.name)
def test_every_program_is_named_by_a_tool_directive(module: Module) -> None:
    text = (module.folder / "go.mod").read_text()
    if module.target == ".":
        assert (module.folder / "main.go").exists()
        assert (module.folder / "go.sum").exists() or "require" not in text, "nothing pins the content"
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


def test_coredns_has_the_plugins_that_are_configured_and_no_others() -> None:
    source = (PACKAGE / "build" / "coredns" / "main.go").read_text()
    built = set(re.findall(r'_ "github.com/coredns/coredns/plugin/(\w+)"', source))
    manifest = (PACKAGE / "manifests" / "coredns.yaml").read_text()
    (corefile,) = re.findall(r"    \.:53 \{\n(.*?)\n    \}\n", manifest, re.S)
    assert built == set(re.findall(r"^ {8}(\w+)", corefile, re.M))


def test_without_go_nothing_is_begun_and_the_cure_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"Go is missing, .* Install Go"):
        binaries.check(replace(Settings.from_environment(), cache=tmp_path))


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ClusterError, match=r"'fluxx'.*flux"):
        binaries.other("fluxx")


def test_each_module_says_which_go_it_needs() -> None:
    assert {module.oldest_go() for module in MODULES} == {(1, 24)}, "the README and --help say 1.24"
    assert all(module.oldest_go() >= (1, 24) for module in OTHERS.values())

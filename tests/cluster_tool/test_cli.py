"""The command line says what it does, and what is wrong with what it is given."""

import signal

import pytest

from cluster import cli, node
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.settings import Settings


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8000:default/chat:80", (8000, "default/chat:80")),
        ("default/chat:80", (0, "default/chat:80")),
        ("0:10.67.0.5:8000", (0, "10.67.0.5:8000")),
        ("10.67.0.5:8000", (0, "10.67.0.5:8000")),
        ("6443:api", (6443, "api")),
        ("api", (0, "api")),
    ],
)
def test_forward_targets(text: str, meant: tuple[int, str]) -> None:
    assert cli.parse_forward(text) == meant


@pytest.mark.parametrize("name", ["KILL", "kill", "SIGKILL", "9"])
def test_signals_have_several_names(name: str) -> None:
    assert node.parse_signal(name) is signal.SIGKILL


@pytest.mark.parametrize("name", ["", "LOUD", "SIG", "999"])
def test_what_is_no_signal_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="is not a signal"):
        node.parse_signal(name)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a node that was never up."""
    folder = tmp_path_factory.mktemp("nowhere")
    monkeypatch.setenv("LLAMASERVER_CLUSTER_NAME", "never-up")
    monkeypatch.setenv("LLAMASERVER_CLUSTER_STATE", str(folder / "state"))
    monkeypatch.setenv("LLAMASERVER_CACHE", str(folder / "cache"))
    return Settings.from_environment()


@pytest.mark.parametrize(
    "words", [["kubectl", "get", "nodes"], ["net", "true"], ["stop", "etcd"], ["forward", "api"]]
)
@pytest.mark.usefixtures("elsewhere")
def test_what_needs_a_node_says_how_to_get_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    assert "python3 e2e/cluster up" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_the_status_of_no_node_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 1
    assert "never-up is down" in capsys.readouterr().out


@pytest.mark.usefixtures("elsewhere")
def test_a_target_without_a_port_is_refused() -> None:
    with pytest.raises(ClusterError, match="NAMESPACE/SERVICE:PORT"):
        Node().address_of("default/chat")


def test_settings_follow_the_environment(elsewhere: Settings) -> None:
    assert elsewhere.name == "never-up"
    assert elsewhere.kubeconfig.is_relative_to(elsewhere.state)


def test_options_of_another_program_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(Node, "live_holder", lambda _: 1)
    monkeypatch.setattr("os.execvpe", lambda _, words, __: ran.append(words))
    cli.main(["kubectl", "-n", "kube-system", "get", "pods", "--help"])
    cli.main(["net", "--", "curl", "-s", "--", "http://10.96.0.1"])
    assert ran[0][-5:] == ["-n", "kube-system", "get", "pods", "--help"]
    assert ran[1][-4:] == ["curl", "-s", "--", "http://10.96.0.1"]


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for verb in (
        "up",
        "down",
        "kubectl",
        "net",
        "exec",
        "stop",
        "start",
        "restart",
        "images",
        "forward",
        "logs",
    ):
        assert f"\n    {verb} " in text

"""The certificates convince the programs that check them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster import pki
from cluster.settings import Settings

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("node")
    settings = Settings(name="node", cache=folder / "cache", state=folder / "state")
    pki.ensure(settings)
    return settings


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "purpose", "identity"),
    [
        ("apiserver", "sslserver", "10.96.0.1"),
        ("apiserver", "sslserver", "127.0.0.1"),
        ("apiserver", "sslserver", "10.66.0.1"),
        ("kubelet-server", "sslserver", "10.66.0.1"),
        ("admin", "sslclient", ""),
        ("kubelet", "sslclient", ""),
    ],
)
def test_certificates_verify_for_their_purpose(
    settings: Settings, name: str, purpose: str, identity: str
) -> None:
    checks = ["-CAfile", settings.pki / "ca.crt", "-purpose", purpose]
    checks += ["-verify_ip", identity] if identity else []
    assert openssl("verify", *checks, settings.pki / f"{name}.crt").strip().endswith("crt: OK")


def test_a_client_certificate_is_no_server(settings: Settings) -> None:
    said = openssl(
        "verify", "-CAfile", settings.pki / "ca.crt", "-purpose", "sslserver", settings.pki / "admin.crt"
    )
    assert "unsuitable certificate purpose" in said


def test_the_kubelet_speaks_as_its_node(settings: Settings) -> None:
    subject = openssl(
        "x509", "-in", settings.pki / "kubelet.crt", "-noout", "-subject", "-nameopt", "RFC2253"
    )
    assert subject.strip() == "subject=CN=system:node:node,O=system:nodes"


def test_keys_are_their_owners_alone(settings: Settings) -> None:
    assert settings.pki.stat().st_mode & 0o077 == 0


def test_kubeconfigs_hold_what_they_need(settings: Settings) -> None:
    config = json.loads(settings.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == settings.api_server
    assert set(config["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}


def test_a_second_call_changes_nothing(settings: Settings) -> None:
    before = (settings.pki / "ca.crt").read_bytes()
    pki.ensure(settings)
    assert (settings.pki / "ca.crt").read_bytes() == before


def test_what_speaks_for_others_is_of_an_authority_of_its_own(settings: Settings) -> None:
    def verified(authority: str) -> bool:
        made = settings.pki / f"{pki.FRONT_PROXY}.crt"
        return openssl("verify", "-CAfile", settings.pki / f"{authority}.crt", made).strip().endswith("OK")

    assert verified(pki.FRONT_PROXY_CA)
    assert not verified(pki.CA)


def test_what_an_older_node_lacks_is_added_and_the_rest_stays(tmp_path: Path) -> None:
    settings = Settings(name="node", cache=tmp_path / "cache", state=tmp_path / "state")
    pki.ensure(settings)
    before = (settings.pki / "ca.crt").read_bytes(), (settings.pki / "sa.key").read_bytes()
    lost = settings.pki / f"{pki.FRONT_PROXY}.crt"
    lost.unlink()
    pki.ensure(settings)
    assert lost.exists()
    assert ((settings.pki / "ca.crt").read_bytes(), (settings.pki / "sa.key").read_bytes()) == before

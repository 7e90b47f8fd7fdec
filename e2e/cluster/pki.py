"""Keys, certificates and kubeconfigs of the node, made with openssl."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from cluster import cache
from cluster.settings import Settings
from cluster.shell import Argument, run

DAYS = "365"


@dataclass(frozen=True)
class Certificate:
    """A certificate to sign: `subject` in openssl's form, and names for servers."""

    name: str
    subject: str
    usage: str = "clientAuth"
    alternative_names: str = ""

    def extensions(self) -> str:
        lines = ["basicConstraints=CA:FALSE", "keyUsage=digitalSignature", f"extendedKeyUsage={self.usage}"]
        return "\n".join(
            [*lines, *([f"subjectAltName={self.alternative_names}"] if self.alternative_names else [])]
        )


KUBECONFIGS = ("admin", "controller-manager", "scheduler", "proxy", "kubelet")
"""Client certificates that also get a kubeconfig, NAME.conf."""


def certificates(settings: Settings) -> list[Certificate]:
    """Every certificate the components present to each other."""
    service_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    api_names = ["localhost", *service_names, "kubernetes.default.svc.cluster.local"]
    api_ips = ["127.0.0.1", settings.node_ip, settings.api_service_ip]
    api_alternatives = ",".join([f"DNS:{name}" for name in api_names] + [f"IP:{ip}" for ip in api_ips])
    node_alternatives = f"DNS:{settings.name},IP:{settings.node_ip},IP:127.0.0.1"
    return [
        Certificate("apiserver", "/CN=kube-apiserver", "serverAuth", api_alternatives),
        Certificate("kubelet-server", f"/CN={settings.name}", "serverAuth", node_alternatives),
        Certificate("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        Certificate("admin", "/O=system:masters/CN=kubernetes-admin"),
        Certificate("controller-manager", "/CN=system:kube-controller-manager"),
        Certificate("scheduler", "/CN=system:kube-scheduler"),
        Certificate("proxy", "/CN=system:kube-proxy"),
        Certificate("kubelet", f"/O=system:nodes/CN=system:node:{settings.name}"),
    ]


def ensure(settings: Settings) -> None:
    """Make the whole folder `settings.pki`, once in the life of a node."""
    if settings.pki.exists():
        return
    with cache.building(settings.pki) as folder:
        folder.mkdir(mode=0o700, parents=True)
        _make_authority(folder)
        for certificate in certificates(settings):
            _sign(folder, certificate)
        # Service account tokens are signed with RSA, the one kind every verifier of such tokens knows.
        run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"])
        run(["openssl", "rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub"])
        for user in KUBECONFIGS:
            text = kubeconfig(folder, user, settings.api_server)
            (folder / f"{user}.conf").write_text(text)


def kubeconfig(folder: Path, user: str, server: str) -> str:
    """A kubeconfig, as JSON (which is YAML), that holds its certificates inline."""

    def inline(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": inline("ca.crt")}
    credentials = {"client-certificate-data": inline(f"{user}.crt"), "client-key-data": inline(f"{user}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "node", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": user}}],
        "current-context": "node",
    }
    return json.dumps(config, indent=1) + "\n"


def _make_key(path: Path) -> None:
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path])


def _make_authority(folder: Path) -> None:
    _make_key(folder / "ca.key")
    request: list[Argument] = [
        "openssl",
        "req",
        "-x509",
        "-new",
        "-key",
        folder / "ca.key",
        "-out",
        folder / "ca.crt",
    ]
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    extensions = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", usage]
    run([*request, "-sha256", "-days", DAYS, "-subj", "/CN=llamaserver-test-node", *extensions])


def _sign(folder: Path, certificate: Certificate) -> None:
    key, request, extensions = (folder / f"{certificate.name}.{kind}" for kind in ("key", "csr", "ext"))
    _make_key(key)
    extensions.write_text(certificate.extensions() + "\n")
    run(["openssl", "req", "-new", "-key", key, "-subj", certificate.subject, "-out", request])
    authority: list[Argument] = ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial"]
    validity: list[Argument] = ["-days", DAYS, "-sha256", "-extfile", extensions]
    signed = folder / f"{certificate.name}.crt"
    run(["openssl", "x509", "-req", "-in", request, *authority, *validity, "-out", signed])
    request.unlink()
    extensions.unlink()

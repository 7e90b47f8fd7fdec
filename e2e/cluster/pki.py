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


CA, FRONT_PROXY_CA = "ca", "front-proxy-ca"
"""The node's authority, and the one of who may speak for others, which no other client may have a
certificate of.
"""
AUTHORITIES = {CA: "/CN=llamaserver-test-node", FRONT_PROXY_CA: "/CN=llamaserver-test-front-proxy"}
FRONT_PROXY = "front-proxy-client"
"""What the API server says to servers behind it, and they expect."""


@dataclass(frozen=True)
class Certificate:
    """A certificate to sign: `subject` in openssl's form, and names for servers."""

    name: str
    subject: str
    usage: str = "clientAuth"
    alternative_names: str = ""
    authority: str = CA

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
        Certificate(FRONT_PROXY, f"/CN={FRONT_PROXY}", authority=FRONT_PROXY_CA),
    ]


def ensure(settings: Settings) -> None:
    """Make the folder `settings.pki`, once in the life of a node; later only what it lacks."""
    if settings.pki.exists():
        _fill(settings.pki, settings)
        return
    with cache.building(settings.pki) as folder:
        folder.mkdir(mode=0o700, parents=True)
        _fill(folder, settings)


def _fill(folder: Path, settings: Settings) -> None:
    for authority, subject in AUTHORITIES.items():
        if not (folder / f"{authority}.crt").exists():
            _make_authority(folder, authority, subject)
    for certificate in certificates(settings):
        if not (folder / f"{certificate.name}.crt").exists():
            sign(folder, certificate, folder)
    if not (folder / "sa.pub").exists():
        # Service account tokens are signed with RSA, the one kind every verifier of such tokens knows.
        run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"])
        run(["openssl", "rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub"])
    for user in KUBECONFIGS:
        (folder / f"{user}.conf").write_text(kubeconfig(folder, user, settings.api_server))


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


def _make_authority(folder: Path, name: str, subject: str) -> None:
    key, made = folder / f"{name}.key", folder / f"{name}.crt"
    _make_key(key)
    request: list[Argument] = ["openssl", "req", "-x509", "-new", "-key", key, "-out", made]
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    extensions = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", usage]
    run([*request, "-sha256", "-days", DAYS, "-subj", subject, *extensions])


def sign(folder: Path, certificate: Certificate, authorities: Path) -> None:
    """Make NAME.key and NAME.crt in `folder`, signed by the authority that lies in `authorities`."""
    key, request, extensions = (folder / f"{certificate.name}.{kind}" for kind in ("key", "csr", "ext"))
    _make_key(key)
    extensions.write_text(certificate.extensions() + "\n")
    run(["openssl", "req", "-new", "-key", key, "-subj", certificate.subject, "-out", request])
    by = authorities / certificate.authority
    authority: list[Argument] = ["-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial"]
    validity: list[Argument] = ["-days", DAYS, "-sha256", "-extfile", extensions]
    signed = folder / f"{certificate.name}.crt"
    run(["openssl", "x509", "-req", "-in", request, *authority, *validity, "-out", signed])
    request.unlink()
    extensions.unlink()

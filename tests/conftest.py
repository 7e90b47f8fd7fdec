"""A real API server for the tests: etcd and kube-apiserver as processes of their own, on free loopback ports.

def test_something(api_server, namespace): api_server.apply({"apiVersion": ..., "kind": ..., "metadata":
{"name": "x", "namespace": namespace}, ...})

`api_server` starts once a session (some five seconds) with the LlamaServer CRD installed, `namespace` is a
fresh one for each test. Programs come from `e2e/cluster`, which builds them once into the cache.

What is real: storage, schemas, CEL, defaulting, subresources, server-side apply, RBAC, watches, Leases,
Events. What does not run: controllers, scheduler, kubelet. So nothing makes pods of a Deployment, collects
garbage, or ends a namespace's deletion; a test that needs a ready pod makes the pod and writes its status,
which `create_ready_pod` does.

Ways in: `api_server.kubeconfig` (a file, for kubernetes.aio, kopf or kubectl), `api_server.url` with
`api_server.token` and `api_server.ca_file` (any client), `api_server.request` and what is built on it
(synchronous), and `api_server.kubectl`. The token is the administrator's; impersonate others to test RBAC.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import ipaddress
import json
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import HealthCheck, settings

from cluster import binaries
from cluster.progress import Progress
from cluster.settings import Settings
from llamaserver.api.crd import crd

Object = dict[str, Any]

START_ATTEMPTS = 3
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 30.0

# The same tests of the same code try their properties with the same examples every time, however slow the
# machine is. With `--hypothesis-profile=random` they try others, and a failure says how to see it again.
settings.register_profile(
    "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True, database=None)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """looptime asks synchronous tests for an event loop too; one made for that is never closed."""
    asyncio.set_event_loop(None)


@dataclass(frozen=True)
class Answer:
    """What the API server answered: the HTTP status, the object (or Status), and its warnings."""

    status: int
    body: Object
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The message of a refusal, as kubectl would print it."""
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class ApiServer:
    """A running API server and the ways in."""

    url: str
    token: str
    ca_file: Path
    kubeconfig: Path
    programs: Path
    folder: Path
    """Logs, certificates and etcd's data; removed with the session."""

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        query: str = "",
    ) -> Answer:
        """One HTTP request as the administrator. Refusals are answers, not exceptions."""
        request = urllib.request.Request(
            f"{self.url}{path}{'?' + query if query else ''}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        context = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as response:
                return _answer(response.status, response.read(), response.headers)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.read(), error.headers)

    def create(self, obj: Mapping[str, Any], query: str = "") -> Answer:
        """POST an object."""
        return self.request("POST", self.path(obj, collection=True), obj, query=query)

    def apply(
        self,
        obj: Mapping[str, Any],
        manager: str = "test",
        *,
        subresource: str = "",
        query: str = "force=true",
    ) -> Answer:
        """Server-side apply an object, or one of its subresources."""
        path = self.path(obj) + (f"/{subresource}" if subresource else "")
        query = f"fieldManager={manager}&{query}"
        return self.request("PATCH", path, obj, "application/apply-patch+yaml", query)

    def get(self, obj: Mapping[str, Any], subresource: str = "") -> Answer:
        """GET the object that `obj` names."""
        return self.request("GET", self.path(obj) + (f"/{subresource}" if subresource else ""))

    def merge(self, obj: Mapping[str, Any], patch: Mapping[str, Any], subresource: str = "") -> Answer:
        """Merge-patch the object that `obj` names, or one of its subresources."""
        path = self.path(obj) + (f"/{subresource}" if subresource else "")
        return self.request("PATCH", path, patch, "application/merge-patch+json")

    def path(self, obj: Mapping[str, Any], *, collection: bool = False) -> str:
        """The URL path of an object, or of the collection it belongs to."""
        version, metadata = str(obj["apiVersion"]), obj["metadata"]
        parts = ["/apis" if "/" in version else "/api", version]
        if namespace := metadata.get("namespace"):
            parts += ["namespaces", namespace]
        parts.append(_plural(str(obj["kind"])))
        return "/".join(parts if collection else [*parts, metadata["name"]])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the kubectl of this server's release; check `returncode` yourself."""
        return subprocess.run(
            [str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=REQUEST_TIMEOUT_S,
            check=False,
            env={"HOME": str(self.folder)},
        )

    def create_namespace(self) -> str:
        """A namespace of a name that nobody has used."""
        name = f"test-{secrets.token_hex(4)}"
        made = self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        assert made.status == 201, made.body
        return name

    def create_ready_pod(
        self, name: str, namespace: str, labels: Mapping[str, str], ip: str = "127.0.0.1", **metadata: Any
    ) -> Object:
        """A pod that looks as if a kubelet ran it: Running, Ready, with an address."""
        container = {"name": "vllm", "image": "none"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": dict(labels), **metadata},
            "spec": {"containers": [container]},
        }
        made = self.create(pod)
        assert made.status == 201, made.body
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        running = {"name": "vllm", "image": "none", "imageID": "none", "ready": True, "restartCount": 0}
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "startTime": now,
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in _READY],
            "containerStatuses": [{**running, "state": {"running": {"startedAt": now}}}],
        }
        marked = self.merge(pod, {"status": status}, "status")
        assert marked.status == 200, marked.body
        return marked.body


_READY = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def _plural(kind: str) -> str:
    """Right for every kind the tests touch."""
    lower = kind.lower()
    return lower[:-1] + "ies" if lower.endswith("y") else lower + "s"


def _answer(status: int, body: bytes, headers: Any) -> Answer:
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = {"message": body.decode(errors="replace")}
    return Answer(status, parsed, tuple(headers.get_all("Warning") or ()))


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server with the LlamaServer CRD, for the whole session."""
    folder = tmp_path_factory.mktemp("apiserver")
    with running_api_server(folder) as server:
        install_crd(server)
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """The name of a fresh namespace."""
    return api_server.create_namespace()


@pytest.fixture
def minimal() -> Object:
    """The smallest LlamaServer that is accepted, as a plain object; a test may change it."""
    return {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0"},
        },
    }


Change = Callable[..., Object]


@pytest.fixture
def changed(minimal: Object) -> Change:
    """`changed({"spec.slo.queueTime.target": "5s", ...})`: the minimal LlamaServer with fields set by dotted
    path.

    A value of None removes the field. `changed(changes, base)` starts from another object.
    """

    def change(changes: Mapping[str, Any], base: Object | None = None) -> Object:
        made = copy.deepcopy(minimal if base is None else base)
        for path, value in changes.items():
            *parents, last = path.split(".")
            place = made
            for parent in parents:
                place = place.setdefault(parent, {})
            if value is None:
                place.pop(last, None)
            else:
                place[last] = copy.deepcopy(value)
        return made

    return change


def install_crd(server: ApiServer) -> None:
    """Install the CRD and wait until it is served."""
    definition = crd()
    made = server.apply(definition)
    assert made.status in (200, 201), made.message
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        conditions = server.get(definition).body.get("status", {}).get("conditions") or []
        state = {condition["type"]: condition for condition in conditions}
        refused = state.get("NonStructuralSchema")
        assert refused is None or refused["status"] == "False", refused
        if state.get("Established", {}).get("status") == "True":
            served = server.request("GET", f"/apis/{definition['spec']['group']}/v1alpha1/llamaservers")
            if served.status == 200:
                return
        assert time.monotonic() < deadline, f"the CRD is not served: {conditions}"
        time.sleep(0.1)


@contextlib.contextmanager
def running_api_server(folder: Path) -> Iterator[ApiServer]:
    """Start etcd and kube-apiserver below `folder`, wait until they are ready, and end them afterwards."""
    programs = binaries.ensure(Settings.from_environment(), Progress(to_stderr=True))
    token = secrets.token_hex(16)
    _write_credentials(folder, token)
    for attempt in range(START_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            # A port found free can be taken by somebody else before it is used: then all is tried again.
            etcd_port, peer_port, api_port = _free_ports(3)
            etcd = _start(
                stack,
                folder,
                "etcd",
                _etcd_command(programs, folder / f"data-{attempt}", etcd_port, peer_port),
            )
            api = _start(stack, folder, "kube-apiserver", _api_command(programs, folder, etcd_port, api_port))
            url = f"https://127.0.0.1:{api_port}"
            _write_kubeconfig(folder, url, token)
            server = ApiServer(url, token, folder / "ca.crt", folder / "kubeconfig", programs, folder)
            if _wait_ready(server, etcd, api):
                yield server
                return
    logs = "\n".join((folder / f"{name}.log").read_text()[-2000:] for name in ("etcd", "kube-apiserver"))
    pytest.fail(f"the API server did not start in {START_ATTEMPTS} attempts:\n{logs}")


def _wait_ready(server: ApiServer, *processes: subprocess.Popen[bytes]) -> bool:
    """True when the server is ready, False when a process ended or the time is over."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        with contextlib.suppress(OSError):
            if server.request("GET", "/readyz").status == 200:
                return True
        time.sleep(0.1)
    return False


def _start(
    stack: contextlib.ExitStack, folder: Path, name: str, command: list[str]
) -> subprocess.Popen[bytes]:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then insist: kube-apiserver would wait a minute for open watches."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _etcd_command(programs: Path, data: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(programs / "etcd"),
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _api_command(programs: Path, folder: Path, etcd_port: int, port: int) -> list[str]:
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--tls-cert-file={folder / 'server.crt'}",
        f"--tls-private-key-file={folder / 'server.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/16",
        # No controller makes service accounts here, so pods must be admitted without one.
        "--disable-admission-plugins=ServiceAccount",
    ]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _write_credentials(folder: Path, token: str) -> None:
    """A throw-away authority, the server's certificate, a key for service accounts, and the
    administrator's token.
    """
    authority_key, server_key, accounts_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    authority = _certificate("test authority", authority_key, None, authority_key)
    server = _certificate("kube-apiserver", server_key, authority, authority_key)
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    for name, key in (("server", server_key), ("accounts", accounts_key)):
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        (folder / f"{name}.key").write_bytes(pem)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """An authority when there is no issuer, else the certificate of a server on 127.0.0.1."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if issuer is None:
        usage = {name: name in ("key_cert_sign", "crl_sign") for name in _KEY_USAGES}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    else:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), address])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA256())


_KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _write_kubeconfig(folder: Path, url: str, token: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": url, "certificate-authority": str(folder / "ca.crt")}}
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}
        ],
        "current-context": "test",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))

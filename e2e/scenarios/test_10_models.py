"""A model comes from a hub that asks for a token: what a user is told until it serves, and what is kept."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.node import Node
from demo.settings import Settings
from fakehub import FakeHub
from harness.fleet import Fleet
from harness.kube import Kube, Object
from harness.manifests import CEILING, claim_of_folder, namespace, secret
from harness.server import condition
from harness.wait import until
from harness.weights import engine_model, engine_python
from scenarios.terms import LEASE_S, LEAST_TARGET_MS, NAMESPACE

NAME, SECRET, CLAIM = "downloaded", "hf-token", "models"
REPOSITORY = "acme/tiny"
TOKEN, WRONG = "hf_granted", "hf_expired"
EACH_HALF_S = 60.0
"""For the weights, until progress was seen: the status is looked at every 20 s."""
TOLD_S = 90.0
"""With what Kubernetes takes to bind the claim, and the kubelet to start again what failed."""
ANSWER_TOKENS = 8
TUNED_S = 30.0
FAR = re.compile(rf"downloading {REPOSITORY}: ([\d.]+) of ([\d.]+) MiB")


@dataclass
class Case:
    """A LlamaServer whose weights are on a hub, and that hub."""

    server: Fleet
    hub: FakeHub
    resource: Object

    def give_token(self, token: str) -> None:
        """Have it in the Secret."""
        self.server.kube.apply(secret(SECRET, NAMESPACE, {"HF_TOKEN": token}))

    def check_tuned(self) -> None:
        """Wait until the engine runs with a cap below its ceiling, by a lease. Raises WaitError."""
        address = self.server.engine_pod()["status"]["podIP"]
        self.server.wait_cap(address, tuned=True, timeout=TUNED_S)
        assert 0.0 < self.server.ask(address)["lease_expires_in_s"] <= LEASE_S

    def downloaded(self) -> tuple[float, float] | None:
        """What the status says is downloaded, and what there is in all, in MiB; None where it does not."""
        ready = condition(self.server.get(), "Ready")
        found = FAR.search(ready["message"]) if ready and ready["reason"] == "Downloading" else None
        return (float(found[1]), float(found[2])) if found else None

    def wait_progress(self) -> None:
        """Wait until the status tells how far a download is that has begun and not ended."""

        def under_way() -> bool:
            told = self.downloaded()
            return told is not None and 0.0 < told[0] < told[1]

        def said() -> object:
            return condition(self.server.get(), "Ready")

        until("the status to tell of progress", under_way, TOLD_S, seen=said)

    def ask(self, path: str, body: Object | None = None) -> Object:
        """What the engine answers to one request, by way of the Service."""
        sent = ("-d", json.dumps(body), "-H", "Content-Type: application/json") if body else ()
        said = self.server.kube.run(
            "curl", "-sS", "-m", "60", *sent, self.server.address() + path, timeout=70
        )
        answer: Object = json.loads(said)
        return answer

    def chat(self) -> Object:
        """An answer to a chat."""
        message = {"role": "user", "content": "why is the sky blue"}
        asked = {"model": REPOSITORY, "messages": [message], "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        return self.ask("/v1/chat/completions", asked)


def resource(fleet: Fleet, hub: FakeHub) -> Object:
    """The manifest, with what docs/models.md says of a gated model behind a mirror, and a bound for which
    the cap is moved without any load.
    """
    made = fleet.resource(objective=None)
    made["spec"]["tuning"]["numSeqs"] = {"max": CEILING // 2}
    made["spec"]["model"] = {
        "uri": f"hf://{REPOSITORY}",
        "revision": hub.commit,
        "tokenSecretRef": {"name": SECRET},
        "cache": {"persistentVolumeClaim": {"claimName": CLAIM}},
    }
    # The image is made for weights of its own, and forbids to ask a hub. Unlike the shared fleet this one has
    # vLLM's processes as they are by themselves, so that tuner, lease and restart are seen with these, too:
    # it starts twice only, and nothing is measured beside it.
    made["spec"]["engine"]["env"] = [
        {"name": "HF_ENDPOINT", "value": hub.url},
        {"name": "HF_HUB_OFFLINE", "value": "0"},
    ]
    return made


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub with the small Llama, where pods reach it: at the node's address, and its store at another."""
    node, folder = Node(), engine_model(engine_python())
    store = next(ipaddress.ip_network(node.settings.pod_cidr).hosts())
    with FakeHub(
        REPOSITORY,
        {path.name: path.read_bytes() for path in folder.iterdir()},
        token=TOKEN,
        pace_s=EACH_HALF_S,
        listener=node.listen("0.0.0.0"),
        host=node.settings.node_ip,
        store_host=str(store),
    ) as made:
        yield made


@pytest.fixture
def case(kube: Kube, settings: Settings, operator: None, hub: FakeHub, tmp_path: Path) -> Iterator[Case]:  # noqa: ARG001
    """With a claim that is empty, and a token that the hub does not know."""
    kube.apply(namespace(NAMESPACE), *claim_of_folder(CLAIM, NAMESPACE, str(tmp_path), Node().settings.name))
    fleet = Fleet(kube, NAME, NAMESPACE, settings.engine_image, settings.runtime_class, LEAST_TARGET_MS)
    made = Case(fleet, hub, resource(fleet, hub))
    made.give_token(WRONG)
    made.server.apply(made.resource)
    yield made
    kube.delete("llamaserver", NAME, NAMESPACE)
    until("its pods to end", lambda: not made.server.pods(), 120, every=1.0)
    kube.delete("secret", SECRET, NAMESPACE)
    kube.delete("persistentvolumeclaim", CLAIM, NAMESPACE)
    kube.delete("persistentvolume", CLAIM, NAMESPACE)


def test_a_model_is_downloaded_once_and_served(case: Case) -> None:
    server, hub = case.server, case.hub

    denied = server.wait_condition("Ready", "False", TOLD_S, reason="ModelAccessDenied")
    assert "Invalid credentials" in denied["message"]
    assert "the Secret of spec.model.tokenSecretRef" in denied["message"]
    assert not hub.fetched, "a byte was fetched before the token was known"
    pod, deployment = server.engine_pod(), server.kube.get("deployment", NAME, NAMESPACE)

    case.give_token(TOKEN)
    case.wait_progress()
    hub.pace_s = 0.0
    server.wait_ready()
    assert server.engine_pod()["metadata"]["uid"] == pod["metadata"]["uid"], (
        "the token alone was to be mended"
    )
    after = server.kube.get("deployment", NAME, NAMESPACE)
    assert deployment is not None
    assert after is not None
    assert after["metadata"]["generation"] == deployment["metadata"]["generation"]

    (served,) = case.ask("/v1/models")["data"]
    assert served["id"] == REPOSITORY
    assert served["root"] == f"/mnt/model/{REPOSITORY}"
    answer = case.chat()
    assert answer["usage"]["completion_tokens"] == ANSWER_TOKENS
    assert answer["choices"][0]["message"]["content"]
    case.check_tuned()
    assert hub.tokens == {f"Bearer {WRONG}", f"Bearer {TOKEN}"}
    assert hub.store_tokens == {""}, "the token was shown to the store"

    fetched = Counter(hub.fetched)
    assert set(fetched.values()) == {1}
    hub.refusal = (503, "", "maintenance")
    server.kube.delete("pod", pod["metadata"]["name"], NAMESPACE)
    server.wait_condition("Ready", "False", 10)
    server.wait_ready()
    assert server.engine_pod()["metadata"]["uid"] != pod["metadata"]["uid"]
    assert case.chat()["usage"]["completion_tokens"] == ANSWER_TOKENS
    case.check_tuned()
    assert hub.fetched == fetched, "a file was fetched again"

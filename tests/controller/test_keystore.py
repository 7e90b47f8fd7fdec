"""The signing key's Secret: made once even by two at a time, and with no more rights than the chart gives."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llamaserver.cluster import AioKube, ApiError, load
from llamaserver.cluster.kinds import CONFIG_MAP, LEASE, SECRET
from llamaserver.controller.keystore import KeyStore
from llamaserver.engine import KeyRing, SigningKey

NAME = "llamaserver-operator-signing-key"


async def test_the_key_is_made_where_there_is_none_and_found_afterwards(
    api_server: Any, namespace: str
) -> None:
    async with AioKube(await load(str(api_server.kubeconfig))) as kube:
        first, second = (KeyStore(kube, namespace=namespace, name=NAME) for _ in range(2))
        assert first.signing_key() is None
        assert await first.refresh()
        assert not await first.refresh()
        await second.refresh()
        assert first.public() == second.public()
        live = await kube.get(SECRET, namespace, NAME)
        assert live is not None
        assert "ownerReferences" not in live["metadata"]


async def test_a_key_that_vanished_is_made_again_as_it_was(api_server: Any, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets/{NAME}"
    async with AioKube(await load(str(api_server.kubeconfig))) as kube:
        store = KeyStore(kube, namespace=namespace, name=NAME)
        await store.refresh()
        before = store.public()
        assert api_server.request("DELETE", path).status == 200
        assert not await store.refresh()
        assert store.public() == before
        fresh = KeyStore(kube, namespace=namespace, name=NAME)
        await fresh.refresh()
        assert fresh.public() == before


async def test_of_many_that_start_at_once_all_use_one_key(api_server: Any, namespace: str) -> None:
    async with AioKube(await load(str(api_server.kubeconfig))) as kube:
        stores = [KeyStore(kube, namespace=namespace, name=NAME) for _ in range(8)]
        await asyncio.gather(*(store.refresh() for store in stores))
        for store in stores:
            await store.refresh()
    assert len({tuple(store.public()) for store in stores}) == 1
    assert len({store.signing_key().kid for store in stores if (store.signing_key())}) == 1  # type: ignore[union-attr]


async def test_a_rotated_key_is_noticed_and_a_broken_secret_is_not_believed(
    api_server: Any, namespace: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": namespace}}
    async with AioKube(await load(str(api_server.kubeconfig))) as kube:
        store = KeyStore(kube, namespace=namespace, name=NAME)
        await store.refresh()
        old = store.signing_key()
        assert old is not None
        new = SigningKey.generate()
        api_server.merge(secret, {"data": KeyRing(old, (old, new)).to_secret_data()})
        assert await store.refresh()
        assert set(store.public()) == {old.kid, new.kid}
        assert store.signing_key().kid == old.kid  # type: ignore[union-attr]
        api_server.merge(secret, {"data": {"active": base64.b64encode(new.kid.encode()).decode()}})
        assert await store.refresh()
        assert store.signing_key().kid == new.kid  # type: ignore[union-attr]
        api_server.merge(secret, {"data": {"active": base64.b64encode(b"nonsense").decode()}})
        assert not await store.refresh()
        assert store.signing_key().kid == new.kid  # type: ignore[union-attr]


class TestLeastRights:
    """With a Role that names the one Secret and the one Lease, and nothing else."""

    @pytest.fixture(autouse=True)
    def role(self, api_server: Any, namespace: str) -> None:
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "operator", "namespace": namespace},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["secrets"],
                    "resourceNames": [NAME],
                    "verbs": ["get", "create", "patch"],
                },
                {
                    "apiGroups": ["coordination.k8s.io"],
                    "resources": ["leases"],
                    "resourceNames": ["llamaserver-operator"],
                    "verbs": ["get", "list", "watch", "create", "update"],
                },
            ],
        }
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "operator", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "limited"}],
        }
        for obj in (role, binding):
            assert api_server.apply(obj).status in (200, 201)

    @pytest.fixture
    async def limited(self, api_server: Any) -> AsyncIterator[AioKube]:
        """A client that acts as the limited user."""
        async with AioKube(await load(str(api_server.kubeconfig))) as kube:
            kube._client.set_default_header("Impersonate-User", "limited")
            yield kube

    async def test_the_secret_is_made_by_its_name_alone(self, limited: AioKube, namespace: str) -> None:
        store = KeyStore(limited, namespace=namespace, name=NAME)
        assert await store.refresh()
        with pytest.raises(ApiError) as refused:
            await KeyStore(limited, namespace=namespace, name="another").refresh()
        assert refused.value.status == 403

    async def test_no_other_secret_can_be_made(self, limited: AioKube, namespace: str) -> None:
        other = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "another", "namespace": namespace},
            "data": {},
        }
        with pytest.raises(ApiError) as refused:
            await limited.apply(other)
        assert refused.value.status == 403

    async def test_the_lease_is_made_and_renewed_by_its_name_alone(
        self, limited: AioKube, namespace: str
    ) -> None:
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": "Lease",
            "metadata": {"name": "llamaserver-operator", "namespace": namespace},
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 30},
        }
        assert await limited.get(LEASE, namespace, "llamaserver-operator") is None
        made = await limited.replace(lease)
        await limited.replace({**made, "spec": {**made["spec"], "leaseDurationSeconds": 40}})
        with pytest.raises(ApiError) as refused:
            await limited.replace({**lease, "metadata": {"name": "another", "namespace": namespace}})
        assert refused.value.status == 403

    async def test_what_is_not_granted_is_refused(self, limited: AioKube, namespace: str) -> None:
        with pytest.raises(ApiError) as refused:
            await limited.list(CONFIG_MAP, namespace)
        assert refused.value.status == 403

    def test_the_lease_can_be_watched_by_its_name_alone(self, api_server: Any, namespace: str) -> None:
        def may(verb: str, name: str) -> bool:
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": "limited",
                    "resourceAttributes": {
                        "group": "coordination.k8s.io",
                        "resource": "leases",
                        "verb": verb,
                        "namespace": namespace,
                        "name": name,
                    },
                },
            }
            path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            return bool(api_server.request("POST", path, review).body["status"]["allowed"])

        assert may("watch", "llamaserver-operator")
        assert not may("watch", "")
        assert not may("list", "another")

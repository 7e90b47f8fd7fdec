"""The signing key in the operator's own namespace: made once, read by name, published as public keys.

Two replicas that start at once may both find no Secret. Each applies its own as a field manager of its own
without force, so that the API server lets the first one win and refuses the second, which then reads what the
first made.
"""

from __future__ import annotations

import logging
import secrets

from llamaserver.cluster import ConflictError, Kube
from llamaserver.cluster.kinds import FIELD_MANAGER, SECRET, Object
from llamaserver.engine import BadKeysError, KeyRing, SigningKey

_log = logging.getLogger(__name__)


class KeyStore:
    """Holds the ring that was read last. `refresh` again to notice a rotation."""

    def __init__(self, kube: Kube, *, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._ring: KeyRing | None = None

    def signing_key(self) -> SigningKey | None:
        """The key to sign with, or None before the first successful `refresh`."""
        return None if self._ring is None else self._ring.active

    def public(self) -> dict[str, str]:
        """Key id to public PEM of every key the engines should accept."""
        return {} if self._ring is None else self._ring.public()

    async def refresh(self) -> bool:
        """Read the Secret, and make it where there is none. Returns whether the ring changed.

        A Secret that has vanished is made again from the ring in use, so that engines go on knowing the key.

        A Secret that cannot be used is reported and the ring in use kept.

        Raises:
            ApiError: the API server could not be asked, or refused.
        """
        secret = await self._kube.get(SECRET, self._namespace, self._name)
        if secret is None:
            secret = await self._make()
        try:
            ring = KeyRing.from_secret_data(secret.get("data") or {})
        except BadKeysError as error:
            _log.error("Secret %s/%s: %s", self._namespace, self._name, error)
            return False
        before = None if self._ring is None else (self._ring.active.kid, self._ring.public())
        self._ring = ring
        return before != (ring.active.kid, ring.public())

    async def _make(self) -> Object:
        made: Object = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": {
                "namespace": self._namespace,
                "name": self._name,
                "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER},
            },
            "type": "Opaque",
            "data": (self._ring or KeyRing.new()).to_secret_data(),
        }
        try:
            secret = await self._kube.apply(
                made, manager=f"{FIELD_MANAGER}-{secrets.token_hex(4)}", force=False
            )
            _log.info("made a signing key in Secret %s/%s", self._namespace, self._name)
        except ConflictError:
            existing = await self._kube.get(SECRET, self._namespace, self._name)
            if existing is None:
                raise
            secret = existing
        return secret

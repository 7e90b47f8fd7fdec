"""Signed changes: an Ed25519 key of the operator's, and short-lived tokens bound to one start of one pod's
engine, one body, one generation.

Engine pods get public keys alone. A copied token is useless: it names another pod or an earlier start of its
engine, is past its `exp`, carries a generation that was already applied, or does not match the body.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

ISSUER = "llamaserver-operator"
TOKEN_LIFETIME_S = 30
"""Long enough for a slow answer and some seconds of clock skew; the tuner takes 60 s at most."""

ACTIVE = "active"
"""The Secret's entry that names the key to sign with; the other entries are `<kid>.pem`."""
_SUFFIX = ".pem"


class BadKeysError(ValueError):
    """The signing Secret does not hold what it should. The message says what to do."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One private key. `kid` is a digest of the public key, so it can never name another."""

    kid: str
    private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key from the operating system's randomness."""
        return cls.of(Ed25519PrivateKey.generate())

    @classmethod
    def of(cls, private: Ed25519PrivateKey) -> SigningKey:
        """The key with its `kid`."""
        raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return cls(hashlib.sha256(raw).hexdigest()[:16], private)

    def public_pem(self) -> str:
        """SubjectPublicKeyInfo, PEM: what engine pods get."""
        return (
            self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        )

    def private_pem(self) -> str:
        """PKCS 8, PEM, unencrypted: what the Secret holds."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, *, pod_uid: str, boot_id: str, generation: int, body: bytes, wall_s: float) -> str:
        """The token for one change to one pod. `boot_id` is its tuner's, `wall_s` Unix time.

        Generations begin anew with the engine while the pod's uid stays, so the start is named, too.
        """
        issued = int(wall_s)
        claims = {
            "iss": ISSUER,
            "aud": pod_uid,
            "boot": boot_id,
            "iat": issued,
            "exp": issued + TOKEN_LIFETIME_S,
            "gen": generation,
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        return jwt.encode(claims, self.private, algorithm="EdDSA", headers={"kid": self.kid})


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The key that signs, and all keys whose public halves the engines should accept."""

    active: SigningKey
    keys: tuple[SigningKey, ...]

    @classmethod
    def new(cls) -> KeyRing:
        """A ring of one new key."""
        key = SigningKey.generate()
        return cls(key, (key,))

    def public(self) -> dict[str, str]:
        """Key id to PEM of every public key, in a stable order."""
        return {key.kid: key.public_pem() for key in sorted(self.keys, key=lambda key: key.kid)}

    def to_secret_data(self) -> dict[str, str]:
        """`data` of the Secret, base64."""
        entries = {f"{key.kid}{_SUFFIX}": key.private_pem() for key in self.keys} | {ACTIVE: self.active.kid}
        return {name: base64.b64encode(text.encode()).decode() for name, text in sorted(entries.items())}

    @classmethod
    def from_secret_data(cls, data: Mapping[str, str]) -> KeyRing:
        """The ring in a Secret's `data`. A `kid` is computed, not believed, so entries may have any name.

        Raises:
            BadKeysError: no key, a key that is none, or an `active` that names none.
        """
        keys: dict[str, SigningKey] = {}
        wanted = ""
        for name, encoded in data.items():
            text = _decoded(name, encoded)
            if name == ACTIVE:
                wanted = text.decode("ascii", "replace").strip()
            elif name.endswith(_SUFFIX):
                key = _loaded(name, text)
                keys[key.kid] = key
        if not keys:
            raise BadKeysError(
                "the signing Secret holds no entry ending in .pem; delete it to have a new one made"
            )
        if not wanted and len(keys) == 1:
            wanted = next(iter(keys))
        if wanted not in keys:
            known = ", ".join(sorted(keys))
            raise BadKeysError(
                f"the signing Secret's entry {ACTIVE!r} names {wanted!r}, which is none of its keys: {known}"
            )
        return cls(keys[wanted], tuple(sorted(keys.values(), key=lambda key: key.kid)))


def _decoded(name: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise BadKeysError(f"the signing Secret's entry {name!r} is no base64") from error


def _loaded(name: str, pem: bytes) -> SigningKey:
    try:
        private = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKeysError(
            f"the signing Secret's entry {name!r} is no unencrypted PEM private key"
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadKeysError(f"the signing Secret's entry {name!r} is no Ed25519 key")
    return SigningKey.of(private)

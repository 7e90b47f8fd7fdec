"""Who may change an engine: the holder of a key whose public half is mounted here.

A change carries a JSON Web Token signed with Ed25519 (`EdDSA`). It names the pod (`aud`), this start of its
server (`boot`), the body's digest (`sha256`), the generation (`gen`) and a life of at most a minute, so a
copied request is of no use: it is for another pod, for an earlier start, or over, or its generation is spent.
Public keys are files `<kid>.pem` in one folder; several are valid at once, so that keys can be rotated, and
the folder is read again whenever it changes.

PyJWT and cryptography come with vLLM. Where they are missing nothing can be verified, so nothing can be
changed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamaserver_tuner.setpoints import Refusal

try:
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    HAS_LIBRARY = True
except ImportError:
    HAS_LIBRARY = False

logger = logging.getLogger("vllm.llamaserver_tuner")

ISSUER = "llamaserver-operator"
MAX_LIFE_S = 60
LEEWAY_S = 10
"""How far the clocks of the operator's node and of this one may differ."""


class KeyRing:
    """The public keys in a folder, by key id. Reads the folder again when a file in it has changed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._seen: tuple[object, ...] = ()
        self._keys: dict[str, Any] = {}

    def keys(self) -> Mapping[str, Any]:
        """Return the valid Ed25519 keys of the folder as it is now; empty when there are none."""
        files = self._files()
        seen = tuple((p.name, s.st_mtime_ns, s.st_size, s.st_ino) for p, s in files)
        if seen != self._seen:
            self._seen = seen
            loaded = ((path.stem, _load(path)) for path, _ in files)
            self._keys = {kid: key for kid, key in loaded if key is not None}
        return self._keys

    def _files(self) -> list[tuple[Path, Any]]:
        if self._folder is None:
            return []
        try:
            # A ConfigMap's files are links into a folder that the kubelet replaces: stat follows them.
            return [(path, path.stat()) for path in sorted(self._folder.glob("*.pem"))]
        except OSError:
            return []


def _load(path: Path) -> Any:
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        logger.warning("no public key in %s: %s", path.name, error)
        return None
    if isinstance(key, Ed25519PublicKey):
        return key
    logger.warning("the key in %s is not an Ed25519 key", path.name)
    return None


@dataclass(frozen=True, slots=True)
class Claims:
    """What a valid token says. `expires_at` is in Unix seconds."""

    generation: int
    expires_at: int


def verify(
    authorization: str | None, body: bytes, pod_uid: str, boot_id: str, keys: Mapping[str, Any]
) -> Claims | Refusal:
    """Check the `Authorization` header of a change with this exact `body` for this start of this pod."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return Refusal("MissingToken", "send `Authorization: Bearer <token>`", "Authorization")
    claims = _decode(token.strip(), pod_uid, keys)
    if isinstance(claims, Refusal):
        return claims
    generation, digest = claims.get("gen"), claims.get("sha256")
    if type(generation) is not int or not isinstance(digest, str):
        return _refused("InvalidToken", "the claims gen (integer) and sha256 (text) are wanted")
    # A container that starts anew keeps its pod's UID and counts generations from 0 again.
    if claims.get("boot") != boot_id:
        return _refused(
            "WrongBoot", "the claim boot is not the boot_id of this start; read the snapshot again"
        )
    if claims["exp"] - claims["iat"] > MAX_LIFE_S:
        return _refused("InvalidToken", f"a token lives at most {MAX_LIFE_S} s; this one lives longer")
    # Both as bytes: a digest with a letter outside ASCII is wrong, not an error.
    if not hmac.compare_digest(digest.encode(), hashlib.sha256(body).hexdigest().encode()):
        return _refused("BodyMismatch", "the body is not the one that was signed")
    return Claims(generation, int(claims["exp"]))


def _decode(token: str, pod_uid: str, keys: Mapping[str, Any]) -> dict[str, Any] | Refusal:
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        if kid is None or kid not in keys:
            return _refused("UnknownKey", f"no public key named {str(kid)[:64]!r} is mounted here")
        return jwt.decode(
            token,
            keys[kid],
            algorithms=["EdDSA"],
            audience=pod_uid,
            issuer=ISSUER,
            leeway=LEEWAY_S,
            options={"require": ["iss", "aud", "iat", "exp"], "strict_aud": True},
        )
    except jwt.ExpiredSignatureError:
        return _refused("Expired", "the token is over")
    except jwt.InvalidAudienceError:
        return _refused("WrongAudience", "the token is for another pod")
    except (jwt.MissingRequiredClaimError, jwt.InvalidIssuerError, jwt.ImmatureSignatureError) as error:
        return _refused("InvalidToken", str(error))
    except (jwt.PyJWTError, ValueError) as error:
        return _refused("BadSignature", str(error))


def _refused(reason: str, message: str) -> Refusal:
    return Refusal(reason, message, "Authorization")

"""Every way a change can be unauthorized has its reason, and nothing but the right token gets through."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llamaserver_tuner.setpoints import Refusal
from llamaserver_tuner.signing import Claims, KeyRing, verify

POD = "pod-a"
BOOT = "boot-a"
BODY = b'{"max_num_active_seqs": 8}'


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


@pytest.fixture
def key(tmp_path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    (tmp_path / "k1.pem").write_bytes(public_pem(key))
    return key


def header(
    key: Any, kid: str | None = "k1", body: bytes = BODY, algorithm: str = "EdDSA", **claims: Any
) -> str:
    now = int(time.time())
    payload = {
        "iss": "llamaserver-operator",
        "aud": POD,
        "boot": BOOT,
        "iat": now,
        "exp": now + 30,
        "gen": 3,
        "sha256": hashlib.sha256(body).hexdigest(),
        **claims,
    }
    payload = {name: value for name, value in payload.items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return "Bearer " + jwt.encode(payload, key, algorithm=algorithm, headers=headers)


def reason(authorization: str | None, folder: Path, body: bytes = BODY, pod: str = POD) -> str:
    outcome = verify(authorization, body, pod, BOOT, KeyRing(folder).keys())
    return outcome.reason if isinstance(outcome, Refusal) else ""


def test_the_right_token_passes_and_says_what_it_is_for(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    outcome = verify(header(key), BODY, POD, BOOT, KeyRing(tmp_path).keys())
    assert isinstance(outcome, Claims)
    assert outcome.generation == 3


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer  ", "Basic abc"])
def test_no_token(authorization: str | None, tmp_path: Path) -> None:
    assert reason(authorization, tmp_path) == "MissingToken"


def test_a_key_that_is_not_mounted(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    assert reason(header(key, kid="k2"), tmp_path) == "UnknownKey"
    assert reason(header(key, kid=None), tmp_path) == "UnknownKey"
    assert reason(header(key, kid="../k1"), tmp_path) == "UnknownKey"


@pytest.mark.usefixtures("key")
def test_another_key_under_a_known_name(tmp_path: Path) -> None:
    assert reason(header(Ed25519PrivateKey.generate()), tmp_path) == "BadSignature"


@pytest.mark.usefixtures("key")
def test_the_public_key_used_as_a_shared_secret(tmp_path: Path) -> None:
    """The classic confusion: a token signed by HMAC, or not at all, must not pass as EdDSA."""
    token = header("x" * 64, algorithm="HS256")
    assert reason(token, tmp_path) == "BadSignature"
    assert reason(header(None, algorithm="none"), tmp_path) == "BadSignature"


def test_what_is_no_token_at_all(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    assert reason("Bearer abc", tmp_path) == "BadSignature"
    head, payload, signature = header(key).split(".")
    assert reason(f"{head}.{payload}.{signature[:-4]}AAAA", tmp_path) == "BadSignature"


@dataclass(frozen=True)
class Now:
    """A moment so many seconds from when the test runs, which may be long after it was collected."""

    offset_s: int

    def unix(self) -> int:
        return int(time.time()) + self.offset_s


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"iat": Now(-100), "exp": Now(-60)}, "Expired"),
        ({"aud": "pod-b"}, "WrongAudience"),
        ({"aud": [POD, "pod-b"]}, "WrongAudience"),
        ({"aud": None}, "InvalidToken"),
        ({"exp": None}, "InvalidToken"),
        ({"iat": None}, "InvalidToken"),
        ({"iss": "somebody"}, "InvalidToken"),
        ({"iat": Now(300), "exp": Now(330)}, "InvalidToken"),
        ({"exp": Now(3600)}, "InvalidToken"),
        ({"boot": "boot-before"}, "WrongBoot"),
        ({"boot": None}, "WrongBoot"),
        ({"gen": None}, "InvalidToken"),
        ({"gen": "3"}, "InvalidToken"),
        ({"sha256": None}, "InvalidToken"),
        ({"sha256": "0" * 64}, "BodyMismatch"),
        ({"sha256": "é"}, "BodyMismatch"),
    ],
)
def test_a_claim_that_is_wrong(
    key: Ed25519PrivateKey, tmp_path: Path, claims: dict[str, Any], expected: str
) -> None:
    timed = {name: value.unix() if isinstance(value, Now) else value for name, value in claims.items()}
    assert reason(header(key, **timed), tmp_path) == expected


def test_another_body_than_the_signed_one(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    assert reason(header(key), tmp_path, body=BODY + b" ") == "BodyMismatch"


def test_clocks_may_differ_by_seconds(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    now = int(time.time())
    assert reason(header(key, iat=now + 5, exp=now + 35), tmp_path) == ""
    assert reason(header(key, iat=now - 35, exp=now - 5), tmp_path) == ""


def test_two_keys_are_valid_while_keys_are_rotated(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    assert set(ring.keys()) == {"k1"}
    new = Ed25519PrivateKey.generate()
    (tmp_path / "k2.pem").write_bytes(public_pem(new))
    for token in (header(key), header(new, kid="k2")):
        assert isinstance(verify(token, BODY, POD, BOOT, ring.keys()), Claims)
    (tmp_path / "k1.pem").unlink()
    outcome = verify(header(key), BODY, POD, BOOT, ring.keys())
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "UnknownKey"


def test_a_replaced_mount_is_read_again(key: Ed25519PrivateKey, tmp_path: Path) -> None:
    """As the kubelet does it: the files are links through a link that is replaced in one move."""
    mount, new = tmp_path / "mount", Ed25519PrivateKey.generate()
    for version, pem in (("v1", public_pem(key)), ("v2", public_pem(new))):
        (tmp_path / version).mkdir()
        (tmp_path / version / "k1.pem").write_bytes(pem)
    mount.mkdir()
    (mount / "..data").symlink_to(tmp_path / "v1")
    (mount / "k1.pem").symlink_to("..data/k1.pem")
    ring = KeyRing(mount)
    assert isinstance(verify(header(key), BODY, POD, BOOT, ring.keys()), Claims)
    (mount / "..next").symlink_to(tmp_path / "v2")
    (mount / "..next").replace(mount / "..data")
    assert isinstance(verify(header(new), BODY, POD, BOOT, ring.keys()), Claims)
    assert isinstance(verify(header(key), BODY, POD, BOOT, ring.keys()), Refusal)


def test_what_is_no_ed25519_key_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----\n")
    (tmp_path / "curve.pem").write_bytes(public_pem(generate_private_key(SECP256R1())))
    (tmp_path / "note.txt").write_bytes(public_pem(Ed25519PrivateKey.generate()))
    assert KeyRing(tmp_path).keys() == {}
    assert KeyRing(tmp_path / "missing").keys() == {}
    assert KeyRing(None).keys() == {}

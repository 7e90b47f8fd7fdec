"""The signing key: what tokens say, what a Secret may hold, and how keys are rotated."""

from __future__ import annotations

import base64
import hashlib

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from llamaserver.engine import BadKeysError, KeyRing, SigningKey


def test_a_token_is_bound_to_pod_body_generation_and_a_short_time() -> None:
    key = SigningKey.generate()
    token = key.sign(
        pod_uid="pod-uid", boot_id="boot-1", generation=18, body=b'{"a":1}', wall_s=1_800_000_000.7
    )
    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "typ": "JWT", "kid": key.kid}
    claims = jwt.decode(
        token,
        key.public_pem(),
        ["EdDSA"],
        audience="pod-uid",
        options={"verify_exp": False, "verify_iat": False},
    )
    assert claims == {
        "iss": "llamaserver-operator",
        "aud": "pod-uid",
        "boot": "boot-1",
        "iat": 1_800_000_000,
        "exp": 1_800_000_030,
        "gen": 18,
        "sha256": hashlib.sha256(b'{"a":1}').hexdigest(),
    }


def test_the_secret_gives_back_the_ring() -> None:
    ring = KeyRing.new()
    again = KeyRing.from_secret_data(ring.to_secret_data())
    assert again.active.kid == ring.active.kid
    assert again.public() == ring.public()
    assert again.active.private_pem() == ring.active.private_pem()


def test_both_keys_are_published_while_rotating_and_the_named_one_signs() -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    data = KeyRing(new, (old, new)).to_secret_data()
    ring = KeyRing.from_secret_data(data)
    assert ring.active.kid == new.kid
    assert set(ring.public()) == {old.kid, new.kid}


def test_a_key_under_any_name_has_the_id_of_its_content() -> None:
    key = SigningKey.generate()
    ring = KeyRing.from_secret_data({"next-year.pem": _encoded(key.private_pem())})
    assert set(ring.public()) == {key.kid}
    assert ring.active.kid == key.kid


def test_public_keys_hold_no_secret() -> None:
    ring = KeyRing.new()
    assert all("PRIVATE" not in pem for pem in ring.public().values())


RSA = (
    rsa.generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    .decode()
)
KEY = SigningKey.generate().private_pem()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "no entry ending in .pem"),
        ({"a.pem": "!!"}, "no base64"),
        ({"a.pem": base64.b64encode(b"garbage").decode()}, "no unencrypted PEM private key"),
        ({"a.pem": base64.b64encode(RSA.encode()).decode()}, "no Ed25519 key"),
        (
            {"a.pem": base64.b64encode(KEY.encode()).decode(), "active": base64.b64encode(b"other").decode()},
            "names 'other'",
        ),
    ],
)
def test_a_secret_that_cannot_be_used_says_what_is_wrong(data: dict[str, str], says: str) -> None:
    with pytest.raises(BadKeysError, match=says):
        KeyRing.from_secret_data(data)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

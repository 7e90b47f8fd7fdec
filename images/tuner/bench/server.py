"""The loopback server of e2e/harness with a signer of its own: one that can also sign what is wrong."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "e2e"))

from harness import loopback
from harness.loopback import MODEL, PLUGINS, POD_UID, SNAPSHOT, Loopback
from harness.traffic import Group, Traffic

__all__ = ["PLUGINS", "SNAPSHOT", "Server", "Signer", "load", "serving"]

ISSUER = "llamaserver-operator"
SCHEDULER = "/llamaserver/v1/scheduler"


class Signer:
    """The operator's side: a key pair whose public half is a file in `folder`."""

    def __init__(self, folder: Path, kid: str = "bench") -> None:
        self.kid = kid
        self._key = Ed25519PrivateKey.generate()
        folder.mkdir(parents=True, exist_ok=True)
        pem = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{kid}.pem").write_bytes(pem)

    def token(self, body: bytes, generation: int, **claims: Any) -> str:
        """Return a token for `body`; `claims` replace the right ones."""
        now = int(time.time())
        payload = {
            "iss": ISSUER,
            "aud": POD_UID,
            "iat": now,
            "exp": now + 30,
            "gen": generation,
            "sha256": hashlib.sha256(body).hexdigest(),
            **claims,
        }
        return jwt.encode(payload, self._key, algorithm="EdDSA", headers={"kid": self.kid})


@dataclass
class Server(Loopback):
    """One running server, and who may change it."""

    signer: Signer | None = None

    def put(
        self,
        cap: int | None,
        budget: int | None,
        lease: float = 120.0,
        generation: int | None = None,
        signer: Signer | None = None,
        **claims: Any,
    ) -> tuple[int, Any]:
        """Send a signed change; the next generation unless one is given."""
        if generation is None:
            generation = 1 + max(engine["generation"] for engine in self.whole_snapshot()["engines"])
        wanted = {"max_num_active_seqs": cap, "max_num_scheduled_tokens": budget}
        body = json.dumps({**wanted, "generation": generation, "lease_seconds": lease}).encode()
        claims = {"boot": self.snapshot()["boot_id"], **claims}
        chosen = signer or self.signer
        assert chosen is not None, "a server without a signer"
        token = chosen.token(body, generation, **claims)
        return self.request("PUT", SCHEDULER, body, {"Authorization": f"Bearer {token}"})

    def child(self, name: str) -> int:
        """Return the process id of the server's child whose command line holds `name`."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and name in command:
                    return int(path.name)
        raise LookupError(f"the server has no child named {name}")


@contextmanager
def serving(
    python: str,
    model: str,
    folder: Path,
    flags: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Iterator[Server]:
    """Start `vllm serve` with the tuner and wait until it is healthy; stop it at the end."""
    signer = Signer(folder / "keys")
    with loopback.serving(python, model, folder, flags, environment) as found:
        yield Server(found.port, found.process, found.log, found.headers, signer)


def load(
    server: Server, streams: int, prompt: tuple[int, int], output: tuple[int, int], key: str = ""
) -> Traffic:
    """Begin closed-loop streams; lengths in tokens, uniform."""
    return Traffic(server.url, MODEL, [[Group(streams, prompt, output)]], server.log.parent, key)

"""A real `vllm serve` on loopback with the tuner in it, a signer for it, and closed-loop streams against
it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "llamaserver-operator"
POD_UID = "7d0c3f5e-loopback"
PLUGINS = "llamaserver_tuner_engine,llamaserver_tuner_http,llamaserver_tuner_stats"
SNAPSHOT = "/llamaserver/v1/snapshot"
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
class Server:
    """One running server. Blocking calls: the load has a process of its own."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    signer: Signer
    headers: dict[str, str] = field(default_factory=dict)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return the status and the JSON (or text) of one request."""
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, body, {**self.headers, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def whole_snapshot(self) -> Any:
        """Return a snapshot with its engines as of now, for which a busy machine may take over a second."""
        for _ in range(20):
            snapshot = self.snapshot()
            if snapshot["age_s"] == 0:
                return snapshot
        raise RuntimeError(f"the engine core is not reachable: {snapshot['message']}")

    def engine(self) -> Any:
        """Return the state of the first engine."""
        return self.whole_snapshot()["engines"][0]

    def snapshot(self) -> Any:
        """Return the tuner's snapshot as it comes."""
        status, content = self.request("GET", SNAPSHOT)
        if status != 200:
            raise RuntimeError(f"GET {SNAPSHOT}: {status}: {content}")
        return content

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
        token = (signer or self.signer).token(body, generation, **claims)
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "serve.log"
    variables = {
        **os.environ,
        "PYTHONPATH": str(_staged(folder / "plugin")),
        "VLLM_PLUGINS": PLUGINS,
        "LLAMASERVER_POD_UID": POD_UID,
        "LLAMASERVER_TUNER_KEYS_DIR": str(folder / "keys"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **(environment or {}),
    }
    vllm = str(Path(python).parent / "vllm")
    address = ["--host", "127.0.0.1", "--port", str(port)]
    command = [vllm, "serve", model, "--served-model-name", "tiny", *address]
    command += ["--max-num-seqs", "32", "--max-model-len", "1024", "--enforce-eager", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=variables, start_new_session=True
        )
    server = Server(port, process, log, signer)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        _stop(process)


def _staged(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stage = Path(__file__).resolve().parent.parent / "stage.py"
    subprocess.run([sys.executable, str(stage), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def _wait_until_healthy(server: Server, seconds: float = 300.0) -> None:
    print(f"starting vllm serve on port {server.port}, log in {server.log}", flush=True)
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if server.process.poll() is not None:
            raise RuntimeError(
                f"vllm serve ended at its start; the log ends with\n{server.log.read_text()[-3000:]}"
            )
        with suppress(OSError):
            if server.request("GET", "/health")[0] == 200:
                print(f"healthy after {time.monotonic() - started:.0f} s", flush=True)
                return
        time.sleep(1.0)
    raise RuntimeError(f"vllm serve is not healthy after {seconds:.0f} s; see {server.log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the session that this server leads, gently first."""
    for number in (signal.SIGCONT, signal.SIGTERM):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Load:
    """Closed-loop streams in a process of their own; what they saw is read back at the end.

    Every stream that ends before its tokens are complete is counted as cut.
    """

    def __init__(
        self, port: int, streams: int, words: Sequence[int], tokens: tuple[int, int], key: str = ""
    ) -> None:
        arguments = {
            "port": port,
            "streams": streams,
            "words": list(words),
            "tokens": list(tokens),
            "key": key,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def stop(self) -> dict[str, Any]:
        """End the load; return {"events": [[t, itl], ...], "done": n, "cut": n}, times of time.time()."""
        output, _ = self._process.communicate(b"stop\n", timeout=60)
        result: dict[str, Any] = json.loads(output)
        return result


async def _stream(session: Any, arguments: dict[str, Any], result: dict[str, Any], number: int) -> None:
    choose = random.Random(number)
    low, high = arguments["tokens"]
    headers = {"Authorization": f"Bearer {arguments['key']}"} if arguments["key"] else {}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for turn in itertools.count():
        prompt = f"{number} {turn} " + "hello " * choose.choice(arguments["words"])
        wanted = choose.randint(low, high)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": wanted, "ignore_eos": True, **usage}
        before, last = 0.0, b""
        async with session.post("/v1/completions", json=body, headers=headers) as answer:
            async for line in answer.content:
                if not line.startswith(b"data:") or b"[DONE]" in line:
                    continue
                last = line
                if b'"choices":[]' in line:
                    continue
                now = time.time()
                if before:
                    result["events"].append((now, now - before))
                before = now
        complete = answer.status == 200 and _tokens(last) == wanted
        result["done" if complete else "cut"] += 1


def _tokens(line: bytes) -> int:
    """Return the number of tokens that the last line of a stream reports; -1 when it does not."""
    try:
        return int(json.loads(line.removeprefix(b"data:"))["usage"]["completion_tokens"])
    except (ValueError, TypeError, KeyError):
        return -1


async def _run(arguments: dict[str, Any]) -> None:
    import aiohttp

    result: dict[str, Any] = {"events": [], "done": 0, "cut": 0}
    base = f"http://127.0.0.1:{arguments['port']}"
    timeout = aiohttp.ClientTimeout(total=3600)
    async with aiohttp.ClientSession(
        base, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        streams = [
            asyncio.create_task(_stream(session, arguments, result, number))
            for number in range(arguments["streams"])
        ]
        await asyncio.to_thread(sys.stdin.readline)
        failed = [stream for stream in streams if stream.done()]
        result["cut"] += len(failed)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))

"""Asks the hub over HTTP, as huggingface_hub does: by its variables (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE,
those of proxies and certificate authorities), its paths, and its names for what is refused.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from llamaserver_tuner import __version__
from llamaserver_tuner.download.progress import COMMIT, File
from llamaserver_tuner.download.selection import is_weights, wanted

TIMEOUT_S: Final = 30.0
CHUNK: Final = 1 << 20
MOVES: Final = 5
_AUTHORITIES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_TRUE: Final = {"1", "ON", "YES", "TRUE"}
_LATER: Final = {408, 429}
"""Refusals, beside those of 500 and more, that are about now and not about the model."""


class HubUnreachableError(Exception):
    """The hub gave no answer, or none that is about the model."""


class OfflineModeIsEnabledError(Exception):
    """HF_HUB_OFFLINE forbids to ask, and what is asked for is not in the cache."""


class RepositoryNotFoundError(Exception):
    """No such repository, or a private one that this token may not see: the hub does not tell which."""


class RevisionNotFoundError(Exception):
    """No such commit, branch or tag in the repository."""


class NoWeightsError(Exception):
    """The repository has nothing that vLLM would load."""


class GatedRepoError(Exception):
    """The repository asks who wants to read it, and this token's owner has not been granted that."""


class RefusedError(Exception):
    """Any other answer that says no."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The content of a file from the byte `start` on."""

    start: int
    chunks: Iterator[bytes]


class Hub:
    """One hub, as one owner of a token sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.endpoint = (environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        self.offline = (environment.get("HF_HUB_OFFLINE") or "").upper() in _TRUE
        # Secrets are often made from files, with a line's end.
        token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or ""
        self._token = "".join(token.split())
        self._opener = _opener(environment)

    def files(self, repository: str, revision: str) -> tuple[str, list[File]]:
        """The commit of a revision and the files in it that an engine reads. Raises this module's errors."""
        url = f"{self.endpoint}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        with self._open(url, {}) as answer:
            body = b"".join(_chunks(answer, url))
        try:
            told = json.loads(body)
            commit = _commit(told["sha"])
            found = {one["rfilename"]: one for one in told["siblings"]}
            files = [_file(path, found[path]) for path in wanted(found)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HubUnreachableError(f"{_shown(url)} answers with something else than a model") from error
        if not any(is_weights(file.path) for file in files):
            raise NoWeightsError(
                f"{repository} holds no weights that vLLM reads (safetensors, .bin, .pt); for GGUF give "
                "--load-format"
            )
        return commit, [
            file if file.blob else self._identified(repository, commit, file.path) for file in files
        ]

    def open(self, repository: str, commit: str, path: str, start: int) -> Stream:
        """The content of a file, from `start` on where the hub can begin there. Raises this module's errors,
        also while the chunks come.
        """
        url = self._resolve(repository, commit, path)
        answer = self._open(url, {"Range": f"bytes={start}-"} if start else {})
        return Stream(start if answer.status == 206 else 0, _chunks(answer, url))

    def _identified(self, repository: str, commit: str, path: str) -> File:
        """A file of a hub whose listing does not tell the digest, by the headers that tell it."""
        url = self._resolve(repository, commit, path)
        for _ in range(MOVES):
            try:
                with self._open(url, {}, "HEAD", follow=False) as answer:
                    headers = answer.headers
                    break
            except _MovedError as moved:
                headers = moved.headers
                target = urljoin(url, headers.get("Location", ""))
                if "X-Linked-Etag" in headers or _origin(target) != _origin(url):
                    break
                url = target
        told = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
        blob = told.removeprefix("W/").strip('"')
        if not blob or "/" in blob or "." in blob:
            raise HubUnreachableError(f"{_shown(url)} does not tell which content it has (ETag)")
        size = _number(headers.get("X-Linked-Size") or headers.get("Content-Length"))
        return File(path, size, blob)

    def _resolve(self, repository: str, commit: str, path: str) -> str:
        return f"{self.endpoint}/{repository}/resolve/{commit}/{quote(path)}"

    def _open(
        self, url: str, headers: dict[str, str], method: str = "GET", follow: bool = True
    ) -> http.client.HTTPResponse:
        asked = {"User-Agent": f"llamaserver-tuner/{__version__}", "Accept-Encoding": "identity", **headers}
        request = _Request(url, headers=asked, method=method)
        request.follow = follow
        if self._token:
            # Not for the stores that the hub sends us to, whose addresses hold their own permission.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_S)
        except HTTPError as error:
            with error:
                raise self._refusal(error, url) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _silence(url, error) from error
        return answer

    def _refusal(self, error: HTTPError, url: str) -> Exception:
        code = error.headers.get("X-Error-Code") or ""
        said = error.headers.get("X-Error-Message") or error.reason
        text = f"{error.code} Client Error from {_shown(url)}: {said}"
        if error.code >= 500 or error.code in _LATER or _origin(error.url) != _origin(self.endpoint):
            where = _shown(error.url)
            return HubUnreachableError(f"couldn't connect to '{where}': {error.code} {said}")
        if code == "GatedRepo":
            return GatedRepoError(text)
        if code == "RevisionNotFound":
            return RevisionNotFoundError(text)
        hidden = error.code == 401 and said != "Invalid credentials in Authorization header"
        unknown = error.code == 404 and code != "EntryNotFound" and "/api/models/" in url
        return (
            RepositoryNotFoundError(text)
            if code == "RepoNotFound" or hidden or unknown
            else RefusedError(text)
        )


class _MovedError(Exception):
    """An answer that leads elsewhere, for who does not want to be led."""

    def __init__(self, headers: http.client.HTTPMessage) -> None:
        super().__init__()
        self.headers = headers


class _Request(Request):
    follow = True


class _Redirects(HTTPRedirectHandler):
    """Goes where it is sent, and shows the token to nobody but who sent it."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        if isinstance(req, _Request) and not req.follow:
            fp.close()
            raise _MovedError(headers)
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if made is not None and token is not None and _origin(newurl) == _origin(req.full_url):
            made.add_unredirected_header("Authorization", token)
        return made


def _opener(environment: Mapping[str, str]) -> OpenerDirector:
    named = next((environment[name] for name in _AUTHORITIES if environment.get(name)), None)
    folder = named is not None and os.path.isdir(named)  # noqa: PTH112 - as ssl takes it
    context = ssl.create_default_context(cafile=None if folder else named, capath=named if folder else None)
    return build_opener(_Redirects(), HTTPSHandler(context=context))


def _chunks(answer: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """What comes, as it comes; an answer that ends before its end is none."""
    left = _number(answer.headers.get("Content-Length"))
    with answer:
        while True:
            try:
                chunk = answer.read1(CHUNK)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise _silence(url, error) from error
            if not chunk:
                break
            if left is not None:
                left -= len(chunk)
            yield chunk
    if left:
        raise HubUnreachableError(f"couldn't connect to '{_shown(url)}' to the end: {left} bytes are missing")


def _commit(told: Any) -> str:
    if not isinstance(told, str) or not COMMIT.fullmatch(told):
        raise ValueError("no commit")
    return told


def _file(path: str, told: dict[str, Any]) -> File:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("a path that leads out of the repository")
    lfs = told.get("lfs") or {}
    blob = str(lfs.get("sha256") or ("" if lfs else told.get("blobId")) or "")
    size = told.get("size")
    known = len(blob) in (40, 64) and set(blob) <= set("0123456789abcdef")
    return File(path, size if isinstance(size, int) else None, blob if known else "", known)


def _silence(url: str, error: Exception) -> HubUnreachableError:
    reason = getattr(error, "reason", None) or error
    return HubUnreachableError(f"couldn't connect to '{_shown(url)}': {reason or type(error).__name__}")


def _shown(url: str) -> str:
    """Without the query, in which stores have their permission."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None

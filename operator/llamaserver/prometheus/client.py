"""Queries and label values, by prometheus-api-client, with a deadline and few retries.

The library is an extra and only needed here: it is imported when somebody asks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from llamaserver.observe.series import Series
from llamaserver.prometheus.errors import PrometheusError

RETRIES = 2
RETRY_ON = (429, 502, 503, 504)
"""What a proxy or a busy Prometheus answers and may not answer again. 500 is an error of the query."""
BACKOFF_S = 0.5
SAID = 300
"""So many letters of an answer are shown."""
MOST_BYTES = 32_000_000
"""Of an answer with samples; those of 300 pods have 5 MB."""

T = TypeVar("T")


@dataclass(frozen=True)
class Cures:
    """What messages tell to do, in the words of the command's options."""

    url: str = "--prometheus"
    trust: str = "--ca-file, or --insecure-skip-verify where that is no risk"
    token: str = "--token-file"  # noqa: S105 - an option
    identify: str = "give a bearer token with --token-file, or another header with --header NAME=VARIABLE"
    reach: str = (
        "check host and port; inside of a cluster, `kubectl port-forward` makes it reachable from here"
    )
    slow: str = ", nor when asked again: raise --timeout, or ask for less with --last, --step or --selector"
    refused: str = "check --selector, or ask for less with --last or --step"
    again: str = "try again, or ask for less with --last"


@dataclass(frozen=True)
class Access:
    """How a Prometheus is reached."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None
    verify: bool = True
    timeout_s: float = 30.0
    token_file: Path | None = None
    """Holds a bearer token; read anew for each request, for such tokens are replaced while one runs."""
    retries: int = RETRIES
    cures: Cures = Cures()


class Prometheus:
    """One Prometheus, or what speaks its HTTP API."""

    def __init__(self, access: Access) -> None:
        """Raises PrometheusError where the library is missing. Asks nothing yet."""
        self._access = access
        self._connect = _connected(access)

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        self._connect.close()

    def label_values(self, label: str, matcher: str, start: float | None, end: float | None) -> list[str]:
        """The values of a label among series that match, sorted; between two times, or at any (None)."""
        params: dict[str, Any] = {"match[]": matcher}
        if start is not None and end is not None:
            params |= {"start": start, "end": end}
        found = self._asked(lambda: self._connect.get_label_values(label, params=params))
        return sorted(str(value) for value in found)

    def matrix(self, query: str, start: int, end: int, step: int) -> list[Series]:
        """A range query; times and step in whole seconds."""

        def ask() -> list[Series]:
            answer = self._connect.custom_query_range(
                query, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC), str(step)
            )
            return [_series(one) for one in answer]

        return self._asked(ask)

    def samples(self, selector: str, within_s: float, most_bytes: int = MOST_BYTES) -> list[Series]:
        """What a range vector selector finds: samples as they were scraped, at the times when they were.
        However slowly the answer comes, it is given up after `within_s`, what is left of the access's
        timeout; and so it is where it has too many bytes.
        """
        from llamaserver.prometheus.limits import AnswerTooLongError, Limits

        where = f"{self._access.cures.url} {self._access.url}"

        def ask() -> list[Series]:
            return [_series(one) for one in self._connect.custom_query(selector, timeout=within_s)]

        with Limits(within_s, most_bytes) as limits:
            try:
                return self._asked(ask)
            except AnswerTooLongError as error:
                raise PrometheusError(
                    f"{where} answered more than {most_bytes / 1e6:.0f} MB, which is not read: see whether "
                    "several of its jobs scrape the same pods"
                ) from error
            except PrometheusError as error:
                # A connection that was shut down at the deadline looks like a fault of some other kind.
                if limits.expired:
                    raise PrometheusError(self._late()) from error
                raise

    def _asked(self, ask: Callable[[], T]) -> T:
        """The answer, or a PrometheusError that says what to do."""
        from requests import exceptions

        cures = self._access.cures
        where = f"{cures.url} {self._access.url}"
        try:
            return ask()
        except exceptions.SSLError as error:
            raise PrometheusError(
                f"{where}: its certificate is not trusted ({_short(error)}); give the authority's with "
                f"{cures.trust}"
            ) from error
        except exceptions.JSONDecodeError as error:
            raise PrometheusError(_no_prometheus(where)) from error
        except exceptions.RequestException as error:
            # A wait that was too long in all tries is told as a connection that failed.
            if isinstance(error, exceptions.Timeout) or "timed out" in str(error):
                raise PrometheusError(self._late()) from error
            raise PrometheusError(f"{where} cannot be reached ({_short(error)}): {cures.reach}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise PrometheusError(_no_prometheus(where)) from error

    def _late(self) -> str:
        access = self._access
        return (
            f"{access.cures.url} {access.url} did not answer within {access.timeout_s:g} s{access.cures.slow}"
        )


def _connected(access: Access) -> Any:
    try:
        import requests
        from prometheus_api_client import PrometheusConnect
        from urllib3.util.retry import Retry

        from llamaserver.prometheus.limits import LimitedAdapter
    except ImportError as error:
        raise PrometheusError(
            f"{error.name} is missing, without which no Prometheus can be asked: pip install "
            "prometheus-api-client (or, in the repository, pip install '.[prometheus]')"
        ) from error
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # what fails in all tries is told once, by us
    session = requests.Session()
    session.verify = str(access.ca_file) if access.ca_file is not None else access.verify
    session.auth = lambda request: _identified(access, request)
    session.hooks["response"].append(lambda response, **_: _refused(access, response))
    # A status that stays is an answer of its own, which the hook above tells.
    retry = Retry(
        total=access.retries,
        backoff_factor=BACKOFF_S,
        status_forcelist=RETRY_ON,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    connect = PrometheusConnect(
        access.url, headers=dict(access.headers), session=session, timeout=access.timeout_s
    )
    # For all addresses: a redirect may lead anywhere.
    session.adapters.clear()
    for scheme in ("http://", "https://"):
        session.mount(scheme, LimitedAdapter(max_retries=retry))
    return connect


def _identified(access: Access, request: Any) -> Any:
    """The request with the token of this moment. Without any such function a ~/.netrc would replace the
    headers that were given.
    """
    if access.token_file is not None:
        request.headers["Authorization"] = f"Bearer {read_token(access.token_file, access.cures.token)}"
    return request


def read_token(file: Path, option: str) -> str:
    """The bearer token in a file. Raises PrometheusError, which names the option and never the content."""
    try:
        token = file.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise PrometheusError(f"{option} {file} holds no token: it has to be one word of ASCII") from error
    except OSError as error:
        raise PrometheusError(f"{option} {file} cannot be read: {error.strerror or error}") from error
    if not token or not token.isprintable() or any(c.isspace() for c in token):
        raise PrometheusError(f"{option} {file} holds no token: it has to be one word of ASCII")
    return token


def _refused(access: Access, response: Any) -> None:
    """Raises PrometheusError for an answer that is an error."""
    status, cures = response.status_code, access.cures
    if status < 400:
        return
    said, where = _said(response), f"{cures.url} {access.url}"
    if status in (401, 403):
        text = f"{where} answered {status}{said}: it wants to know who asks, or does not let him"
        raise PrometheusError(f"{text}; {cures.identify}")
    if status == 404:
        raise PrometheusError(f"{_no_prometheus(where)} (404)")
    if status in (400, 422):
        raise PrometheusError(f"{where} refuses the query{said}: {cures.refused}")
    raise PrometheusError(f"{where} answered {status}{said}: {cures.again}")


def _no_prometheus(where: str) -> str:
    return (
        f"{where} does not answer as a Prometheus does: give the address below which "
        "/api/v1/query is, with its path if there is one"
    )


def _said(response: Any) -> str:
    """What an answer says of itself, in brackets."""
    try:
        body = response.json()
        text = str(body.get("error") or "") if isinstance(body, dict) else ""
    except ValueError:
        text = ""
    return f" ({text[:SAID]})" if text else ""


def _short(error: Exception) -> str:
    """The innermost reason."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) is not None:
        if not isinstance(inner, Exception):
            break
        error = inner
    return str(error)[:SAID]


def _series(one: Any) -> Series:
    labels = {str(name): str(value) for name, value in one["metric"].items()}
    points = [(float(t), _number(value)) for t, value in one["values"]]
    return Series(labels, points)


def _number(text: Any) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

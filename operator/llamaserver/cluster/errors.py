"""What can go wrong between the operator and the API server, by what the caller should do about it."""

from __future__ import annotations

import json


class ApiError(Exception):
    """The API server answered with an error.

    `status` is the HTTP status, `reason` Kubernetes' CamelCase word for it.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class NotFoundError(ApiError):
    """404: the object, its namespace or its kind is not there."""


class ConflictError(ApiError):
    """409: somebody else was first (AlreadyExists, stale resourceVersion, uid mismatch, owned field)."""


class GoneError(ApiError):
    """410: the list's continue token is too old; list again from the start."""


class UnavailableError(ApiError):
    """No answer, an answer too late, 429 or 5xx: the same call may go through later.

    `status` is 0 when there was no answer at all.
    """


class NotLeadingError(ApiError):
    """A write was held back because this replica cannot prove now that it is the leader."""

    def __init__(self) -> None:
        super().__init__(0, "NotLeading", "this replica cannot prove that it leads, so it does not write")


def from_response(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error for a response, from its Status object where there is one."""
    reason, message = "", body[:500].decode("utf-8", "replace").strip()
    try:
        answer = json.loads(body)
        reason, message = str(answer.get("reason") or ""), str(answer.get("message") or message)
    except (ValueError, AttributeError):
        pass
    retry_after_s = _seconds(retry_after)
    if status == 404:
        return NotFoundError(status, reason or "NotFound", message)
    if status == 409:
        return ConflictError(status, reason or "Conflict", message)
    if status == 410:
        return GoneError(status, reason or "Gone", message)
    if status == 500 and message.startswith(_NOT_IN_THE_SCHEMA):
        return ApiError(status, "Invalid", message)
    if status == 429 or status >= 500:
        return UnavailableError(status, reason or "Unavailable", message, retry_after_s)
    return ApiError(status, reason or "Error", message)


_NOT_IN_THE_SCHEMA = "failed to create typed patch object"
"""How server-side apply says that an object has a field the API server does not know, or one twice: as a 500
without a reason, though no repetition will mend it.
"""


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None

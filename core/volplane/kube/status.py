"""What an answer of the API server that is not a success means: the error for it.

Source: `Status` of apimachinery meta/v1, and the HTTP codes of the Kubernetes API conventions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from volplane._delays import LONGEST_ASKED_BY_SERVER
from volplane.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable

__all__ = ["Status", "error_from"]


class Cause(msgspec.Struct, gc=False):
    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[Cause] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, gc=False):
    """meta/v1 Status, as far as it is read."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


_DECODER = msgspec.json.Decoder(Status)


def error_from(code: int, headers: Mapping[str, str], body: bytes, *, call: str) -> ApiError:
    """Return the error for an answer that is not a success.

    call: method and path, for the message where the body has none.
    """
    try:
        status = _DECODER.decode(body)
    except ValueError:
        text = body[:200].decode(errors="replace").strip()
        status = Status(message=f"{call} was answered {code}{': ' if text else ''}{text}")
    message = status.message or f"{call} was answered {code} {status.reason}".rstrip()
    return _CLASSES.get(_class_of(code, status), ApiError)(
        message, status=code, reason=status.reason, retry_after=_retry_after(headers, status)
    )


_CLASSES: Mapping[int, type[ApiError]] = {
    401: ApiUnavailable,  # credentials rotate, or what checks them restarts: the same call is accepted a moment later
    404: ApiNotFound,
    409: ApiConflict,
    410: ApiGone,
    429: ApiUnavailable,
    500: ApiUnavailable,
}


def _class_of(code: int, status: Status) -> int:
    if code == 409 and status.reason == "AlreadyExists":
        return 0
    causes = status.details.causes if status.details is not None else None
    if any(cause.reason == "ResourceVersionTooLarge" for cause in causes or ()):
        return 410  # a version that the server has not reached or never had: it needs a new list too
    return min(500, code)


def _retry_after(headers: Mapping[str, str], status: Status) -> float | None:
    """Return the seconds of the body or the header (RFC 9110, 10.2.3, no dates); None if none are given."""
    asked = status.details.retry_after_seconds if status.details is not None else None
    if not asked:
        try:
            asked = float(headers["retry-after"])
        except (KeyError, ValueError):
            return None
    return min(asked, LONGEST_ASKED_BY_SERVER) if asked > 0 else None

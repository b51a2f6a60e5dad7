"""From error codes of a cloud to the errors of the contract, by one table: code, class, doubt, advice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from volplane._shared import ERRORS, SECONDS
from volplane.errors import (
    AttachedElsewhere,
    BackendError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)

__all__ = ["NOT_SENT", "NO_ANSWER", "NO_CREDENTIALS", "CloudError", "ErrorRow", "ErrorTable", "measured"]

_CERTAIN = (InvalidArgument, PermissionDenied, ResourceExhausted, NotFound)
"""Classes for which a cloud refuses a call before it does anything, unless the row says otherwise."""


NO_ANSWER = "NoAnswer"
"""Code of a driver: the request was sent and no usable answer came; it may have taken effect."""
NOT_SENT = "NotSent"
"""Code of a driver: there was no connection; the request has no effect."""
NO_CREDENTIALS = "NoCredentials"
"""Code of a driver: there are no credentials, or the cloud does not accept them for a token or a role."""


class CloudError(Exception):
    """A call of a cloud that gave no result."""

    def __init__(self, call: str, code: str, message: str) -> None:
        """call: its name. code, message: the cloud's, or codes of the driver."""
        super().__init__(f"{call}: {code}: {message}")
        self.call = str(call)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """A row of an error table."""

    codes: tuple[str, ...]
    """Codes of the cloud; one that ends with * stands for every code with this prefix."""
    error: type[BackendError]
    """The class."""
    advice: str = ""
    """What a person can do; `{call}` stands for the name of the call."""
    doubt: bool | None = None
    """Whether the call may have taken effect all the same; None = as is usual for the class."""
    retry_after: float | None = None
    """Seconds; None = as is usual for the class."""
    scope: str = ""
    """Of `ResourceExhausted`; empty = the code."""
    reschedule: bool = False
    """Of `ResourceExhausted`."""

    def __post_init__(self) -> None:
        if issubclass(self.error, AttachedElsewhere):
            raise TypeError("AttachedElsewhere needs the name of a node, which no code tells")

    def covers(self, code: str) -> bool:
        """Return whether the row is about this code."""
        return any(code == each or (each[-1:] == "*" and code.startswith(each[:-1])) for each in self.codes)

    @property
    def in_doubt(self) -> bool:
        """Return whether the call may have taken effect all the same."""
        return not issubclass(self.error, _CERTAIN) if self.doubt is None else self.doubt


_UNKNOWN = ErrorRow(codes=("*",), error=BackendError)


class ErrorTable:
    """The rows, the first that covers a code applies. A code that none covers is a `BackendError`, in doubt."""

    def __init__(self, rows: Iterable[ErrorRow]) -> None:
        self.rows = tuple(rows)

    def row(self, code: str) -> ErrorRow:
        """Return the row of a code."""
        return next((row for row in self.rows if row.covers(code)), _UNKNOWN)

    def knows(self, code: str) -> bool:
        """Return whether a row covers the code."""
        return self.row(code) is not _UNKNOWN

    def in_doubt(self, error: CloudError) -> bool:
        """Return whether the call may have taken effect all the same."""
        return self.row(error.code).in_doubt

    def translated(self, error: CloudError, doing: str) -> BackendError:
        """Return the error of the contract. doing: as in "make a volume for pvc-1"."""
        row = self.row(error.code)
        reason = error.message.strip().rstrip(".") or error.code
        text = f"cannot {doing}: {reason}"
        if row is _UNKNOWN:
            text += f" ({error.call})"
        if row.advice:
            text += ": " + row.advice.replace("{call}", error.call)
        if issubclass(row.error, ResourceExhausted):
            return row.error(
                text,
                scope=row.scope or error.code,
                reschedule=row.reschedule,
                code=error.code,
                retry_after=row.retry_after,
            )
        return row.error(text, code=error.code, retry_after=row.retry_after)


@contextmanager
def measured(cloud: str, request: str) -> Iterator[None]:
    """Count the call that the block makes, its duration and the `CloudError` that leaves it.

    cloud, request: labels, such as "ec2" and "CreateVolume"; few and fixed, never a name or an id.
    """
    began = time.perf_counter()
    try:
        yield
    except CloudError as error:
        ERRORS.labels(cloud, request, error.code).inc()
        raise
    finally:
        SECONDS.labels(cloud, request).observe(time.perf_counter() - began)

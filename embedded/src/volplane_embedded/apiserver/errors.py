"""The Status bodies a Kubernetes API server answers with when it refuses a request.

Reasons and codes follow `k8s.io/apimachinery/pkg/apis/meta/v1.StatusReason`; causes follow its `CauseType`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

MOST_OF_A_VALUE: Final = 1024
"""Characters of a name or a value of the client that are repeated in an answer. A stock server repeats all of them."""
MOST_OF_A_MESSAGE: Final = 16_384
MOST_CAUSES: Final = 128


def _cut(text: str, most: int = MOST_OF_A_VALUE) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


@dataclass(frozen=True, slots=True)
class Cause:
    """One refused field: an entry of `details.causes` (metav1.StatusCause, field.Error)."""

    reason: str
    field: str
    message: str

    @classmethod
    def required(cls, path: str, why: str = "") -> Cause:
        return cls("FieldValueRequired", path, f"Required value: {why}" if why else "Required value")

    @classmethod
    def invalid(cls, path: str, value: object, why: str) -> Cause:
        return cls("FieldValueInvalid", path, f"Invalid value: {_shown(value)}: {why}")

    @classmethod
    def forbidden(cls, path: str, why: str) -> Cause:
        return cls("FieldValueForbidden", path, f"Forbidden: {why}")

    @classmethod
    def unsupported(cls, path: str, value: object, legal: list[str]) -> Cause:
        names = ", ".join(f'"{name}"' for name in sorted(legal))
        return cls(
            "FieldValueNotSupported", path, f'Unsupported value: "{_cut(str(value))}": supported values: {names}'
        )

    @classmethod
    def too_long(cls, path: str, limit: str) -> Cause:
        """limit: the number and what is counted, for example `253 bytes`."""
        return cls("FieldValueTooLong", path, f"Too long: may not be more than {limit}")

    @classmethod
    def not_found(cls, path: str, value: object) -> Cause:
        return cls("FieldValueNotFound", path, f'Not found: "{_cut(str(value))}"')

    @classmethod
    def duplicate(cls, path: str, value: object) -> Cause:
        return cls("FieldValueDuplicate", path, f'Duplicate value: "{_cut(str(value))}"')


@dataclass(slots=True)
class StatusError(Exception):
    """A refused request (apierrors.StatusError). The response is a `Status`; nothing was written."""

    code: int
    reason: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    """ListMeta of the Status. A 410 for an expired page has a token there, to continue from the current state."""

    def __str__(self) -> str:
        return f"{self.code} {self.reason}: {self.message}"

    def body(self) -> dict[str, Any]:
        """Return the `Status` object of the response."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": _cut(self.message, MOST_OF_A_MESSAGE),
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


def _shown(value: object) -> str:
    return f'"{_cut(value)}"' if isinstance(value, str) else _cut(json.dumps(value, separators=(",", ":")))


def _details(name: str, group: str, kind: str) -> dict[str, Any]:
    return {key: _cut(value) for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> StatusError:
    return StatusError(
        404, "NotFound", f'{_qualified(plural, group)} "{_cut(name)}" not found', _details(name, group, plural)
    )


def already_exists(plural: str, group: str, name: str) -> StatusError:
    message = f'{_qualified(plural, group)} "{_cut(name)}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{_cut(name)}": {why}'
    return StatusError(409, "Conflict", message, _details(name, group, plural))


def forbidden(plural: str, group: str, name: str, why: str) -> StatusError:
    message = f'{_qualified(plural, group)} "{_cut(name)}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, _details(name, group, plural))


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def gone(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> StatusError:
    """422 with one cause per refused field, up to 128. The message tells each once, as often as it is a cause."""
    told = causes[:MOST_CAUSES]
    lines = list(dict.fromkeys(f"{_cut(cause.field)}: {cause.message}" for cause in told))
    shown = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    qualified = _qualified(kind, group)
    details = _details(name, group, kind)
    details["causes"] = [
        {"reason": cause.reason, "message": _cut(cause.message, MOST_OF_A_MESSAGE), "field": _cut(cause.field)}
        for cause in told
    ]
    return StatusError(422, "Invalid", f'{qualified} "{_cut(name)}" is invalid: {shown}', details)


def denied(webhook: str, why: str, code: int = 0, reason: str = "") -> StatusError:
    """Return the answer if a webhook does not allow a request. code: 0 = it gave none, which becomes 400.

    Source: staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors of Kubernetes.
    """
    message = f'admission webhook "{webhook}" denied the request: {why}'
    return StatusError(code or 400, reason, message)


def webhook_failed(webhook: str, why: str) -> StatusError:
    """Return the answer if a webhook of failurePolicy Fail gives no usable answer."""
    return StatusError(500, "InternalError", f'Internal error occurred: failed calling webhook "{webhook}": {why}')

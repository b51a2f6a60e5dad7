"""Query parameters and bodies that say how a request is to be carried out: the options of meta/v1.

CreateOptions, UpdateOptions, PatchOptions, DeleteOptions and ListOptions. They are checked as
`k8s.io/apimachinery/pkg/apis/meta/v1/validation` checks them: 422 with a cause per option.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver import decoding
from volplane_embedded.apiserver.errors import Cause, StatusError, bad_request, conflict, invalid
from volplane_embedded.apiserver.requests import Query
from volplane_embedded.apiserver.resources import Json, Resource

_FIELD_VALIDATION: Final = ("Ignore", "Warn", "Strict")
_PROPAGATION: Final = ("Foreground", "Background", "Orphan")
_MATCHES: Final = ("Exact", "NotOlderThan")
_MANAGER_BYTES: Final = 128
_MAX_GRACE_SECONDS: Final = 100 * 365 * 86_400


# --- writes -------------------------------------------------------------------------------------------------------


class WriteOptions(msgspec.Struct, frozen=True):
    """dry_run: answer as usual, but write nothing. field_validation: one of Ignore, Warn, Strict; "" = the default."""

    dry_run: bool
    field_validation: str

    @classmethod
    def read(cls, query: Query, kind: str) -> WriteOptions:
        """kind: name of the options in the message (CreateOptions, ...). Raises StatusError (422)."""
        asked = query.text("dryRun")
        level = query.text("fieldValidation")
        causes = [*_manager_causes(query.text("fieldManager")), *_dry_run_causes((asked,) if asked else ())]
        if level and level not in _FIELD_VALIDATION:
            causes.append(Cause.unsupported("fieldValidation", level, ["", *_FIELD_VALIDATION]))
        if kind == "PatchOptions" and query.text("force"):
            causes.append(Cause.forbidden("force", "may not be specified for non-apply patch"))
        _refuse(kind, causes)
        return cls(bool(asked), level)


def _dry_run_causes(values: Sequence[object]) -> Iterator[Cause]:
    if any(value != "All" for value in values):
        yield Cause.unsupported("dryRun", ", ".join(map(str, values)), ["All"])


def _manager_causes(manager: str) -> Iterator[Cause]:
    if len(manager) > _MANAGER_BYTES:
        yield Cause("FieldValueTooLong", "fieldManager", f"Too long: may not be more than {_MANAGER_BYTES} bytes")
    elif not manager.isprintable():
        yield Cause.invalid("fieldManager", manager, "should only contain printable characters")


def _refuse(kind: str, causes: list[Cause]) -> None:
    """Raise StatusError (422) if there is a cause."""
    if causes:
        raise invalid(kind, "meta.k8s.io", "", causes)


# --- deletions ----------------------------------------------------------------------------------------------------


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteBody(msgspec.Struct, rename="camel"):
    """meta/v1 DeleteOptions. There is no garbage collector, so propagation is checked but has no effect."""

    kind: str | None = None
    api_version: str | None = None
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: list[str] | None = None


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """grace: seconds, None = the default of the kind. uid, version: preconditions, None = any."""

    grace: int | None = None
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False
    propagation: str = ""
    """Foreground, Background or Orphan; "": the default of the kind."""

    @classmethod
    def read(cls, body: bytes, query: Query, content_type: str) -> DeleteOptions:
        """Read the options from the body, or from the query if the body is empty. Raises StatusError (400, 422)."""
        asked = [query.text("dryRun")] if query.text("dryRun") else []
        if not body.strip():
            policy, orphan = query.text("propagationPolicy") or None, query.text("orphanDependents")
            causes = [
                *_dry_run_causes(asked),
                *_propagation_causes(policy, query.flag("orphanDependents") if orphan else None),
            ]
            _refuse("DeleteOptions", causes)
            return cls(
                _grace(query.number("gracePeriodSeconds")),
                dry_run=bool(asked),
                propagation=policy or ("Orphan" if query.flag("orphanDependents") else ""),
            )
        return cls.given(decoding.decode(body, content_type), asked)

    @classmethod
    def given(cls, value: Any, asked: Sequence[str] = ()) -> DeleteOptions:
        """Options in a decoded body. asked: `dryRun` of the query. Raises StatusError (400, 422)."""
        try:
            given = msgspec.convert(value, _DeleteBody)
        except msgspec.ValidationError as why:
            raise bad_request(f"json: cannot unmarshal DeleteOptions: {why}") from None
        if given.kind not in (None, "", "DeleteOptions"):
            message = f"the object provided is unrecognized (must be of type DeleteOptions): {given.kind}"
            raise bad_request(message)
        wanted = given.preconditions or _Preconditions()
        dry_run = [*(given.dry_run or ()), *asked]
        causes = [
            *_propagation_causes(given.propagation_policy, given.orphan_dependents),
            *_dry_run_causes(dry_run),
        ]
        _refuse("DeleteOptions", causes)
        propagation = given.propagation_policy or ("Orphan" if given.orphan_dependents else "")
        grace = _grace(given.grace_period_seconds)
        return cls(grace, wanted.uid, wanted.resource_version, bool(dry_run), propagation)

    def check(self, resource: Resource, meta: Json) -> None:
        """Raise StatusError (409) if the object with this metadata does not meet a precondition."""
        if resource.plural == "namespaces" and self.uid not in {None, meta["uid"]}:
            why = f"Precondition failed: UID in precondition: {self.uid}, UID in object meta: {meta['uid']}"
            raise conflict(resource.plural, resource.group, meta["name"], why)
        pairs = (
            ("UID", self.uid, meta["uid"], "The object might have been deleted and then recreated"),
            ("ResourceVersion", self.version, meta["resourceVersion"], "The object might have been modified"),
        )
        for what, wanted, found, guess in pairs:
            if wanted is not None and wanted != found:
                why = (
                    f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). {guess}"
                )
                raise conflict(resource.kind, resource.group, meta["name"], why)


def _propagation_causes(policy: str | None, orphan: bool | None) -> Iterator[Cause]:
    if policy is not None and orphan is not None:
        yield Cause.invalid("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set")
    if policy is not None and policy not in _PROPAGATION:
        yield Cause.unsupported("propagationPolicy", policy, [*_PROPAGATION, "nil"])


def _grace(asked: int | None) -> int | None:
    """Return the grace period. A negative one means one second, as in a stock server.

    A huge one is cut, so that its end has a date.
    """
    if asked is None:
        return None
    return 1 if asked < 0 else min(asked, _MAX_GRACE_SECONDS)


# --- lists and watches --------------------------------------------------------------------------------------------

_LAST_VERSION: Final = 2**64 - 1
_VERSION_DIGITS: Final = len(str(_LAST_VERSION))


def parse_version(text: str) -> int | None:
    """Return the resourceVersion of a get or watch, None if it is not given.

    Raises StatusError (500, as a stock server).
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise StatusError(500, "", f"resourceVersion: {why}")
    if len(text) > _VERSION_DIGITS or int(text) > _LAST_VERSION:
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": value out of range'
        raise StatusError(500, "", f"resourceVersion: {why}")
    return int(text)


def _version_of_list(text: str) -> int | None:
    """Return the resourceVersion of a list. Raises StatusError (400)."""
    try:
        return parse_version(text)
    except StatusError as why:
        raise bad_request(f"invalid resource version: {why.message}") from None


@dataclass(frozen=True, slots=True)
class ListOptions:
    """version, match: resourceVersion and resourceVersionMatch. limit: 0 = no limit. token: the continue token."""

    version: int | None
    match: str
    limit: int
    token: str
    send_initial_events: bool

    @classmethod
    def read(cls, query: Query, *, watch: bool) -> ListOptions:
        """Raises StatusError: 422 for options that exclude each other, 400 for what cannot be parsed."""
        text, match = query.text("resourceVersion"), query.text("resourceVersionMatch")
        initial = query.flag("sendInitialEvents")
        forbidden = _forbidden_match(query, text, match, initial, watch=watch)
        _refuse("ListOptions", forbidden)
        version = parse_version(text) if watch else _version_of_list(text)
        return cls(version, match, max(0, query.number("limit") or 0), query.text("continue"), initial)


def _forbidden_match(query: Query, version: str, match: str, initial: bool, *, watch: bool) -> list[Cause]:
    if initial and not watch:
        return [Cause.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")]
    if initial and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        return [Cause.forbidden("resourceVersionMatch", why)]
    if initial or not match:
        return []
    if match not in _MATCHES and not watch:
        return [Cause.unsupported("resourceVersionMatch", match, list(_MATCHES))]
    if watch:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes = [Cause.forbidden("resourceVersionMatch", why)]
        if match != "NotOlderThan":
            causes.append(Cause.unsupported("resourceVersionMatch", match, ["NotOlderThan"]))
        return causes
    for holds, why in (
        (not version, "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (query.text("continue"), "resourceVersionMatch is forbidden when continue is provided"),
        (match == "Exact" and version == "0", 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'),
    ):
        if holds:
            return [Cause.forbidden("resourceVersionMatch", why)]
    return []

"""GET of an object or a collection: selectors, versions, pages."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from volplane_embedded.apiserver.errors import Cause, Failure, bad_request, gone, invalid
from volplane_embedded.apiserver.requests import Query, Request
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.selectors import Selection, select
from volplane_embedded.apiserver.storage import Registry, storage_of
from volplane_embedded.apiserver.store import Compacted, Page, key_of

__all__ = ["ListOptions", "Lists", "parse_version"]

_MATCHES: Final = ("Exact", "NotOlderThan")
_PAGE_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without"
    " the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
)


class _Token(msgspec.Struct, rename={"version": "rv", "after": "start"}):
    """A continue token: the snapshot (0: whatever is there now) and the key to go on after."""

    version: int
    after: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> _Token:
        """Raises Failure (400)."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
        except (ValueError, msgspec.MsgspecError) as why:
            raise bad_request(f"continue key is not valid: {why}") from None


def parse_version(text: str) -> int | None:
    """A resourceVersion of a list or watch, None where not given. Raises Failure (400)."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: resourceVersion: {why}")
    return int(text)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """meta/v1 ListOptions, checked as `ValidateListOptions` does."""

    version: int | None
    match: str
    limit: int
    token: str
    send_initial_events: bool

    @classmethod
    def read(cls, query: Query, *, watch: bool) -> ListOptions:
        """Raises Failure: 422 for options that do not go together, 400 for what cannot be read."""
        text, match = query.text("resourceVersion"), query.text("resourceVersionMatch")
        initial = query.flag("sendInitialEvents")
        forbidden = _forbidden_match(query, text, match, initial, watch=watch)
        if forbidden:
            raise invalid("ListOptions", "meta.k8s.io", "", forbidden)
        return cls(parse_version(text), match, max(0, query.number("limit") or 0), query.text("continue"), initial)


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
    for holds, why in (
        (watch, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"),
        (not version, "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (query.text("continue"), "resourceVersionMatch is forbidden when continue is provided"),
        (match == "Exact" and version == "0", 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'),
    ):
        if holds:
            return [Cause.forbidden("resourceVersionMatch", why)]
    return []


@dataclass(frozen=True, slots=True)
class Lists:
    """The reading verbs, watches aside."""

    registry: Registry

    def get(self, request: Request) -> bytes:
        """The stored bytes of an object. Raises Failure (400, 404, 504)."""
        version = parse_version(request.query.text("resourceVersion"))
        if version:
            self._not_newer(version)
        return self.registry.find(request).data

    def list(self, request: Request) -> tuple[list[bytes], Json]:
        """Rows and ListMeta of a collection. Raises Failure (400, 410, 422, 504)."""
        resource, query = request.resource, request.query
        options = ListOptions.read(query, watch=False)
        selection = select(resource, query.text("labelSelector"), query.text("fieldSelector"))
        version, after = self._snapshot(options)
        limit = 0 if options.version == 0 else options.limit
        if selection is not None and selection.name and (request.namespace or not resource.namespaced) and not version:
            page = self._named(request, selection, after)
        else:
            page = self._page(request, version, after, limit, selection.keeps if selection is not None else None)
        shown = version or self.registry.store.version
        metadata: Json = {"resourceVersion": str(shown)}
        if page.last:
            metadata["continue"] = _Token(shown, page.last).encode()
        if page.remaining:
            metadata["remainingItemCount"] = page.remaining
        return page.rows, metadata

    def _snapshot(self, options: ListOptions) -> tuple[int, str]:
        """Version to show (0 = now) and key to start after."""
        if options.token:
            if options.version:
                raise bad_request("specifying resource version is not allowed when using continue")
            token = _Token.read(options.token)
            return token.version, token.after
        if options.version:
            self._not_newer(options.version)
            # A limit without a match means the same as Exact, so that all pages show one snapshot.
            if options.match == "Exact" or (options.limit and not options.match):
                return options.version, ""
        return 0, ""

    def _not_newer(self, version: int) -> None:
        current = self.registry.store.version
        if version > current:
            message = f"Too large resource version: {version}, current: {current}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise Failure(504, "Timeout", f"Timeout: {message}", {"causes": [cause], "retryAfterSeconds": 1})

    def _page(
        self, request: Request, version: int, after: str, limit: int, keep: Callable[[bytes], bool] | None
    ) -> Page:
        storage = storage_of(request.resource)
        try:
            return self.registry.store.page(
                storage, request.namespace, version=version, after=after, limit=limit, keep=keep
            )
        except Compacted as why:
            if not after:
                raise gone(str(why)) from None
            expired = gone(_PAGE_EXPIRED)
            expired.metadata["continue"] = _Token(0, after).encode()
            raise expired from None

    def _named(self, request: Request, selection: Selection, after: str) -> Page:
        """The list of one object, found by its name."""
        key = key_of(request.namespace, selection.name)
        stored = self.registry.store.get(storage_of(request.resource), key)
        matches = stored is not None and key > after and selection.matches(stored.decode())
        return Page([stored.data] if stored is not None and matches else [], "", 0)

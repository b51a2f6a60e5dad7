"""GET of an object or a collection: selectors, versions, pages."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from volplane_embedded.apiserver.errors import StatusError, bad_request, gone
from volplane_embedded.apiserver.options import ListOptions, parse_version
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.selectors import Selection, select
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of
from volplane_embedded.apiserver.store import Compacted, Page, key_of

_PAGE_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without"
    " the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
)


class _Token(msgspec.Struct, rename={"version": "rv", "after": "start"}):
    """A continue token. version: the snapshot, 0 = the current state. after: the last key of the page before."""

    version: int
    after: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> _Token:
        """Raises StatusError (400)."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
        except (ValueError, msgspec.MsgspecError) as why:
            raise bad_request(f"continue key is not valid: {why}") from None


@dataclass(frozen=True, slots=True)
class Lists:
    """The verbs get and list."""

    objects: ObjectStorage

    def get(self, request: Request) -> bytes:
        """Return the stored bytes of an object. Raises StatusError (404, 500, 504)."""
        version = parse_version(request.query.text("resourceVersion"))
        if version:
            self._not_newer(version)
        return self.objects.find(request).data

    def list(self, request: Request) -> tuple[list[bytes], Json]:
        """Rows and ListMeta of a collection. Raises StatusError (400, 410, 422, 504)."""
        resource, query = request.resource, request.query
        options = ListOptions.read(query, watch=False)
        selection = select(resource, query.text("labelSelector"), query.text("fieldSelector"))
        version, after = self._snapshot(options)
        limit = 0 if options.version == 0 else options.limit
        if selection is not None and selection.name and (request.namespace or not resource.namespaced) and not version:
            page = self._named(request, selection, after)
        else:
            page = self._page(request, version, after, limit, selection.keeps if selection is not None else None)
        shown = version or self.objects.store.version
        metadata: Json = {"resourceVersion": str(shown)}
        if page.last:
            metadata["continue"] = _Token(shown, page.last).encode()
        if page.remaining:
            metadata["remainingItemCount"] = page.remaining
        return page.rows, metadata

    def _snapshot(self, options: ListOptions) -> tuple[int, str]:
        """Return the version to list at (0 = now) and the key to start after."""
        if options.token:
            if options.version:
                raise bad_request("specifying resource version is not allowed when using continue")
            token = _Token.read(options.token)
            return token.version, token.after
        if options.version:
            self._not_newer(options.version)
            # A limit without resourceVersionMatch means Exact, so that all pages show one snapshot.
            if options.match == "Exact" or (options.limit and not options.match):
                return options.version, ""
        return 0, ""

    def _not_newer(self, version: int) -> None:
        current = self.objects.store.version
        if version > current:
            message = f"Too large resource version: {version}, current: {current}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise StatusError(504, "Timeout", f"Timeout: {message}", {"causes": [cause], "retryAfterSeconds": 1})

    def _page(
        self, request: Request, version: int, after: str, limit: int, keep: Callable[[bytes], bool] | None
    ) -> Page:
        storage = storage_of(request.resource)
        try:
            return self.objects.store.page(
                storage, request.namespace, version=version, after=after, limit=limit, keep=keep
            )
        except Compacted as why:
            if not after:
                raise gone(str(why)) from None
            expired = gone(_PAGE_EXPIRED)
            expired.metadata["continue"] = _Token(0, after).encode()
            raise expired from None

    def _named(self, request: Request, selection: Selection, after: str) -> Page:
        """Return the list of one object, read by its name."""
        key = key_of(request.namespace, selection.name)
        stored = self.objects.store.get(storage_of(request.resource), key)
        matches = stored is not None and key > after and selection.matches(stored.decode())
        return Page([stored.data] if stored is not None and matches else [], "", 0)

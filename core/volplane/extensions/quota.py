"""Limits the bytes of all assets made for the claims of a namespace, over all drivers of this process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from volplane import (
    Absent,
    Asset,
    BackendError,
    Declined,
    DeleteRequest,
    Done,
    ExpandRequest,
    FindRequest,
    Param,
    ParameterKind,
    ParameterSchema,
    ProvisionRequest,
    Unavailable,
    hookimpl,
    read_parameters,
)
from volplane.errors import ConfigurationError
from volplane.kube.quantity import format_bytes, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    ledger: Annotated[str, Param("File that records the assets; its directory must exist.")]
    limits: Annotated[Mapping[str, str], Param("Namespace and size.")] = field(default_factory=dict)
    default: Annotated[
        int | None, Param("For every other namespace; without it they have no limit.", kind=ParameterKind.SIZE)
    ] = None
    retry_after: Annotated[
        float, Param("How long until a declined claim is tried again.", name="retryAfter", minimum=1)
    ] = 60.0


class Quota:
    """Declines calls that would take a namespace over its limit.

    Assets are kept in a ledger, a JSON file: volume name -> namespace and bytes. An asset counts from before the call
    that makes it until it is deleted, so concurrent claims cannot exceed the limit and an unknown outcome counts. Only
    one process at a time may use the ledger: with several replicas, put it on storage that the leader mounts. Assets
    made before the extension was enabled, and recycled volumes, do not count.
    """

    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Options)

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Read the ledger. Raises ConfigurationError for a limit that is no size, or a ledger that cannot be read."""
        self._options = read_parameters(Options, options)
        self._path = Path(self._options.ledger)
        self._limits: dict[str, int] = {}
        for namespace, text in self._options.limits.items():
            try:
                self._limits[namespace] = parse(text).as_bytes()
            except ValueError:
                expected = f"limit of namespace {namespace} is {text!r}, expected a size such as 10Gi"
                raise ConfigurationError(expected) from None
        self._lock = threading.Lock()
        self._ledger: dict[str, tuple[str, int]] = {}
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            self._ledger = {str(name): (str(owner), int(size)) for name, (owner, size) in content.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(f"quota ledger {self._path} cannot be read: {reason}") from None

    @hookimpl(wrapper=True)
    def provision(self, request: ProvisionRequest) -> Generator[None, Any, Any]:
        fresh = self._reserve(request.name, request.claim.namespace, request.capacity_bytes)
        try:
            result = yield
        except BackendError as error:
            # Only a call that certainly made nothing gives its reservation back; an asset may be there otherwise.
            if error.nothing_done and fresh:
                self._settle(request.name, None)
            raise
        if isinstance(result, Asset):
            self._settle(request.name, result.capacity_bytes)
        return result

    @hookimpl(wrapper=True)
    def expand(self, request: ExpandRequest) -> Generator[None, Any, Any]:
        with self._lock:
            known = self._ledger.get(request.volume.name)
        if known is not None:
            self._reserve(request.volume.name, known[0], request.capacity_bytes)
        result = yield
        if isinstance(result, Asset):
            self._settle(request.volume.name, result.capacity_bytes)
        return result

    @hookimpl(wrapper=True)
    def find(self, request: FindRequest) -> Generator[None, Any, Any]:
        """Forget an asset that does not exist: no `delete` follows."""
        result = yield
        if isinstance(result, Absent):
            self._settle(request.name, None)
        return result

    @hookimpl(wrapper=True)
    def delete(self, request: DeleteRequest) -> Generator[None, Any, Any]:
        result = yield
        if isinstance(result, Done):
            self._settle(request.volume.name, None)
        return result

    def _reserve(self, name: str, namespace: str, size: int) -> bool:
        """Add the asset; return whether it is new. Raises Declined if it does not fit, Unavailable on I/O errors."""
        with self._lock:
            known = self._ledger.get(name)
            if known is not None and known[1] >= size:
                return False
            limit = self._limits.get(namespace, self._options.default)
            used = sum(taken for other, (owner, taken) in self._ledger.items() if owner == namespace and other != name)
            if limit is not None and used + size > limit:
                state = f"namespace {namespace} has {format_bytes(used)} of its {format_bytes(limit)}"
                raise Declined(f"{state}; {format_bytes(size)} more do not fit", retry_after=self._options.retry_after)
            self._save({**self._ledger, name: (namespace, size)})
            return known is None

    def _settle(self, name: str, size: int | None) -> None:
        """Correct the size of an asset that is known; None = it does not exist any more."""
        with self._lock:
            known = self._ledger.get(name)
            if known is None or known[1] == size:
                return
            others = {other: entry for other, entry in self._ledger.items() if other != name}
            self._save(others if size is None else {**self._ledger, name: (known[0], size)})

    def _save(self, ledger: dict[str, tuple[str, int]]) -> None:
        """Replace the file atomically, then the copy in memory, so a crash or a full disk leaves one of both."""
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(ledger, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise Unavailable(f"quota ledger {self._path} cannot be written: {error.strerror or error}") from None
        self._ledger = ledger

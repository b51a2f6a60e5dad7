"""Who may ask what of those who come without the token of the process: what the API server says of their own token.

Through a port-forward to the pod of the controller anybody comes who may open one: that proves no right to read the
claims of others. So the token that they send is reviewed (TokenReview), and whether its user may read what an answer is
about (SubjectAccessReview): one object, the claims of a namespace, or everything. An answer to less is refused whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from volplane.asking import AUDIENCE
from volplane.controller.controller import Rule
from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES, Kind
from volplane.kube.objects import Claim, KubeObject
from volplane.process.control_plane import ControlPlane
from volplane.snapshots.groups_objects import (
    GROUP_CONTENTS,
    GROUPS,
    VolumeGroupSnapshot,
    group_content_name_of,
    names_group,
)
from volplane.snapshots.groups_operation import GROUP_QUEUE
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.operation import QUEUE
from volplane.snapshots.state import content_name_of, names_snapshot
from volplane.state.matching import refers_to

_KEPT: Final = 10.0
"""Seconds for which a right counts that was there. One that was not is asked for again."""
_MOST_KEPT: Final = 1_000
_AT_ONCE: Final = 2
"""Reviews, so that a flood of tokens leaves the API server to the controllers."""
_EXPLAINED: Final[Mapping[str, Kind[Any]]] = {
    "claim": CLAIMS,
    "volume": VOLUMES,
    "class": STORAGE_CLASSES,
    "snapshot": VOLUME_SNAPSHOTS,
    "group": GROUPS,
}
_CHANGES: Final = {"/leaks/fix": "delete", "/adopt": "patch"}
"""By path the verb on volumes that a caller needs, where an answer changes storage."""

_QUEUES: Final = {"claim": "claims", "snapshot": "snapshots", "group": "group-snapshots"}

Right = tuple[str, Kind[Any], str, str]
"""Verb, kind, namespace ("" = all) and name ("" = any)."""


class _Reviewed(KubeObject):
    status: dict[str, Any] = msgspec.field(default_factory=dict)


TOKEN_REVIEWS: Final = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", False, _Reviewed)
ACCESS_REVIEWS: Final = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", False, _Reviewed)
REVIEWS: Final = tuple(
    Rule(kind.api_version.partition("/")[0], kind.plural, ("create",)) for kind in (TOKEN_REVIEWS, ACCESS_REVIEWS)
)
"""What a process needs to be asked so."""


def rights_for(path: str, query: Mapping[str, str], plane: ControlPlane) -> Iterator[Right]:
    """Yield what a caller must be allowed to get the answer."""
    if path == "/explain":
        for word, key in query.items():
            if (kind := _EXPLAINED.get(word)) is not None:
                namespace, _, name = key.rpartition("/")
                yield "get", kind, namespace, name
                yield from _behind(word, key, plane)
    elif path == "/status" and (within := query.get("namespace", "")):
        yield "list", CLAIMS, within, ""
    else:
        yield "list", CLAIMS, "", ""
        yield _CHANGES.get(path, "list"), VOLUMES, "", ""


def _behind(word: str, key: str, plane: ControlPlane) -> Iterator[Right]:
    """Yield the rights to what an explanation tells beside the object, which its owner may have point anywhere."""
    controller = plane.controllers.get(_QUEUES.get(word, ""))
    found = controller.cache.get(key) if controller is not None else None
    if word == "class":  # It names the claims that wait for it.
        yield "list", CLAIMS, "", ""
    elif word == "group":  # Its members are claims of its namespace.
        yield "list", CLAIMS, key.rpartition("/")[0], ""
    if isinstance(found, Claim):
        volume = plane.state.volumes.get(found.spec.volume_name)
        if volume is not None and not refers_to(volume, found):
            yield "get", VOLUMES, "", volume.name
    elif isinstance(found, VolumeSnapshot):
        contents = plane.controllers.get(QUEUE)
        content = contents.cache.get(content_name_of(found)) if contents is not None else None
        if content is not None and not names_snapshot(content, found):
            yield "get", VOLUME_SNAPSHOT_CONTENTS, "", content.name
    elif isinstance(found, VolumeGroupSnapshot):
        contents = plane.controllers.get(GROUP_QUEUE)
        content = contents.cache.get(group_content_name_of(found)) if contents is not None else None
        if content is not None and not names_group(content, found):
            yield "get", GROUP_CONTENTS, "", content.name


@dataclass(eq=False)
class Callers:
    """Asks the API server who callers are, and what they may do. What they may counts for a while."""

    client: Client
    plane: Callable[[], ControlPlane | None]
    _kept: dict[tuple[bytes, object], tuple[float, Any]] = field(default_factory=dict)
    """(hash of a token, what was asked about it) -> until when it counts, and the answer."""
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def guard(self, path: str, query: Mapping[str, str], token: str) -> tuple[int, str]:
        """Answer as `volplane.controller.http.Guard`."""
        if (plane := self.plane()) is None:
            return 421, "this process does not lead"
        who = hashlib.sha256(token.encode()).digest()
        try:
            user = await self._asked(who, TOKEN_REVIEWS, {"token": token}, "user")
            user = user or await self._asked(who, TOKEN_REVIEWS, {"token": token, "audiences": [AUDIENCE]}, "user")
            if not user:
                return 401, "the API server does not know the token"
            subject = {("user" if name == "username" else name): value for name, value in user.items()}
            for verb, kind, namespace, name in rights_for(path, query, plane):
                group = kind.api_version.rpartition("/")[0]
                about = {"verb": verb, "group": group, "resource": kind.plural, "namespace": namespace, "name": name}
                spec = {**subject, "resourceAttributes": about}
                if not await self._asked(who, ACCESS_REVIEWS, spec, "allowed"):
                    what = f"{kind.plural} {name}".rstrip() + (f" in namespace {namespace}" if namespace else "")
                    return 403, f"{user.get('username')} may not {verb} {what}"
        except ApiError as error:
            return 403, f"the controller cannot review who asks, which its account needs the right for: {error}"
        return 200, ""

    async def _asked(self, who: bytes, kind: Kind[_Reviewed], spec: Mapping[str, Any], wanted: str) -> Any:
        """Return this field of the status of a review; None or False if the token, or the user, is refused."""
        now, question = asyncio.get_running_loop().time(), (who, json.dumps(spec, sort_keys=True))
        until, answer = self._kept.get(question, (0.0, None))
        if now < until:
            return answer
        async with self._turns:
            status = (await self.client.create(kind, kind.body(spec=spec), low_priority=True)).status
        answer = status.get(wanted) if kind is ACCESS_REVIEWS or status.get("authenticated") is True else None
        if "audiences" in spec and AUDIENCE not in (status.get("audiences") or ()):
            answer = None  # A server that knows no audiences, or an authenticator that passes them over.
        if answer:
            self._kept = {} if len(self._kept) >= _MOST_KEPT else self._kept
            self._kept[question] = now + _KEPT, answer
        return answer

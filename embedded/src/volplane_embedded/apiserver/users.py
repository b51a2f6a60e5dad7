"""Who the users of a server are, by their tokens, and what each may do. By itself a server has one, who may everything.

There are no Role objects: whoever runs the server, as a test does, says what a user may by a function.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.requests import Query, Request, is_watch
from volplane_embedded.apiserver.resources import Json

AUDIENCE: Final = "https://kubernetes.default.svc.cluster.local"
"""That of tokens which the server itself accepts."""
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Access(NamedTuple):
    """What somebody wants to do. name, namespace: "" = all. resource: with its subresource, after a slash."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """A user, known by one token."""

    name: str = "volplane"
    groups: Sequence[str] = ("system:masters", "system:authenticated")
    may: Callable[[Access], bool] = lambda _: True
    audiences: Sequence[str] = (AUDIENCE,)
    """Who takes the token."""

    def info(self) -> Json:
        """Return a UserInfo of authentication.k8s.io/v1."""
        return {"username": self.name, "uid": f"uid-of-{self.name}", "groups": list(self.groups)}


ADMIN: Final = User()
CALLER: Final[ContextVar[User]] = ContextVar("CALLER", default=ADMIN)
"""Whose request is being answered."""


@dataclass(slots=True)
class Users:
    """The users of a server."""

    by_token: dict[str, User] = field(default_factory=dict)

    def of(self, token: str, audiences: Sequence[str] = (AUDIENCE,)) -> User | None:
        """Return whose token it is, if it is for one of these audiences."""
        given = token.encode(errors="replace")
        found = [user for known, user in self.by_token.items() if hmac.compare_digest(known.encode(), given)]
        return next((user for user in found if not set(audiences).isdisjoint(user.audiences)), None)

    def named(self, name: str) -> User | None:
        return next((user for user in self.by_token.values() if user.name == name), None)

    def account_token(self, namespace: str, name: str, spec: Mapping[str, object]) -> str:
        """Return a new token of a service account, which may everything, as `spec` of a TokenRequest asks."""
        audiences = spec.get("audiences")
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        chosen = tuple(map(str, audiences)) if isinstance(audiences, list) and audiences else (AUDIENCE,)
        token = secrets.token_urlsafe(32)
        self.by_token[token] = User(f"system:serviceaccount:{namespace}:{name}", groups, audiences=chosen)
        return token


def authorize(user: User, method: str, path: str, query: Query, request: Request | None) -> None:
    """Raise StatusError (403) if the user may not do that. request: None = about no object."""
    if user is ADMIN or request is None:
        return
    resource, wants_all = request.resource, not request.name
    verb = _VERBS.get(method, "")
    if method in ("GET", "HEAD"):
        verb = "watch" if is_watch(path, query) else "list" if wants_all else "get"
    elif method == "DELETE":
        verb = "deletecollection" if wants_all else "delete"
    named = f"{resource.plural}/{request.subresource}" if request.subresource else resource.plural
    name = request.name
    if wants_all and query.text("fieldSelector").startswith("metadata.name="):
        name = query.text("fieldSelector").removeprefix("metadata.name=")
    # A WebSocket is opened by a GET, but what comes of it is a create (KEP-5290): a server of 1.35 asks for both.
    verbs = ("get", "create") if request.subresource == "portforward" and method == "GET" else (verb,)
    for each in verbs:
        if not user.may(Access(each, resource.group, named, request.namespace, name)):
            where = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
            about = f"{resource.plural}{f'.{resource.group}' if resource.group else ''}"
            text = f"{about}{f' {chr(34)}{request.name}{chr(34)}' if request.name else ''} is forbidden: User "
            text += f'"{user.name}" cannot {each} resource "{named}" in API group "{resource.group}" {where}'
            details = {"name": request.name, "group": resource.group, "kind": resource.plural}
            raise StatusError(403, "Forbidden", text, {key: value for key, value in details.items() if value})

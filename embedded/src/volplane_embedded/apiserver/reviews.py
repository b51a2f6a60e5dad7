"""Reviews: who somebody is, by a token (authentication.k8s.io), and what somebody may do (authorization.k8s.io)."""

from __future__ import annotations

from typing import Final

from volplane_embedded.apiserver import decoding
from volplane_embedded.apiserver.errors import bad_request
from volplane_embedded.apiserver.requests import Answer, wrong_method
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.responses import json_answer
from volplane_embedded.apiserver.users import AUDIENCE, CALLER, Access, User, Users

_ALL: Final = ["*"]
_RULES: Final[Json] = {
    "resourceRules": [{"verbs": _ALL, "apiGroups": _ALL, "resources": _ALL}],
    "nonResourceRules": [{"verbs": _ALL, "nonResourceURLs": _ALL}],
    "incomplete": False,
}
_AUTHENTICATION: Final = "authentication.k8s.io/v1"
_AUTHORIZATION: Final = "authorization.k8s.io/v1"
REVIEWS: Final[dict[str, tuple[str, str]]] = {
    f"/apis/{version}/{kind.lower()}s": (version, kind)
    for version, kind in (
        (_AUTHORIZATION, "SelfSubjectAccessReview"),
        (_AUTHORIZATION, "SelfSubjectRulesReview"),
        (_AUTHORIZATION, "SubjectAccessReview"),
        (_AUTHENTICATION, "SelfSubjectReview"),
        (_AUTHENTICATION, "TokenReview"),
    )
}
"""Path to apiVersion and kind."""


def review(method: str, path: str, body: bytes, content_type: str, users: Users) -> Answer:
    """Answer a POST to one of REVIEWS. Raises StatusError (400, 405, 415)."""
    if method != "POST":
        raise wrong_method()
    version, kind = REVIEWS[path]
    value = decoding.decode(body, content_type)
    if not isinstance(value, dict) or value.get("kind", kind) != kind or value.get("apiVersion", version) != version:
        raise bad_request(f"the object provided is unrecognized (must be of type {kind})")
    given = value.get("spec")
    asked: Json = given if isinstance(given, dict) else {}
    match kind:
        case "TokenReview":
            status = _token(asked, users)
        case "SelfSubjectReview":
            status = {"userInfo": CALLER.get().info()}
        case "SelfSubjectRulesReview":
            status = _RULES
        case "SelfSubjectAccessReview":
            status = {"allowed": _may(CALLER.get(), asked)}
        case _:
            status = {"allowed": _may(users.named(str(asked.get("user"))), asked)}
    spec = {"spec": value["spec"]} if "spec" in value else {}
    return json_answer(201, {"kind": kind, "apiVersion": version, "metadata": {}, **spec, "status": status})


def _token(asked: Json, users: Users) -> Json:
    audiences = [str(each) for each in asked.get("audiences") or (AUDIENCE,)]
    user = users.of(str(asked.get("token", "")), audiences)
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user.info(), "audiences": sorted(set(audiences) & set(user.audiences))}


def _may(user: User | None, asked: Json) -> bool:
    wanted = asked.get("resourceAttributes")
    if user is None or not isinstance(wanted, dict):
        return user is not None
    parts = [str(wanted.get(part) or "") for part in ("verb", "group", "resource", "namespace", "name")]
    if wanted.get("subresource"):
        parts[2] += f"/{wanted['subresource']}"
    return user.may(Access(*parts))

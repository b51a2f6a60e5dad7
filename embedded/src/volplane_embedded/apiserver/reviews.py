"""Reviews of the caller's own access (authorization.k8s.io): everyone with the token may do everything."""

from __future__ import annotations

from typing import Final

from volplane_embedded.apiserver import decoding
from volplane_embedded.apiserver.errors import bad_request
from volplane_embedded.apiserver.requests import Answer, wrong_method
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.responses import json_answer

_ALL: Final = ["*"]
_RULES: Final[Json] = {
    "resourceRules": [{"verbs": _ALL, "apiGroups": _ALL, "resources": _ALL}],
    "nonResourceRules": [{"verbs": _ALL, "nonResourceURLs": _ALL}],
    "incomplete": False,
}
REVIEWS: Final[dict[str, tuple[str, str, Json]]] = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": (
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        {"allowed": True},
    ),
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": (
        "authorization.k8s.io/v1",
        "SelfSubjectRulesReview",
        _RULES,
    ),
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": (
        "authentication.k8s.io/v1",
        "SelfSubjectReview",
        {"userInfo": {"username": "volplane", "groups": ["system:masters", "system:authenticated"]}},
    ),
}
"""Path to apiVersion, kind and the status of every response."""


def review(method: str, path: str, body: bytes, content_type: str) -> Answer:
    """Answer a POST to one of REVIEWS. Raises StatusError (400, 405, 415)."""
    if method != "POST":
        raise wrong_method()
    version, kind, status = REVIEWS[path]
    value = decoding.decode(body, content_type)
    if not isinstance(value, dict) or value.get("kind", kind) != kind or value.get("apiVersion", version) != version:
        raise bad_request(f"the object provided is unrecognized (must be of type {kind})")
    spec = {"spec": value["spec"]} if "spec" in value else {}
    return json_answer(201, {"kind": kind, "apiVersion": version, "metadata": {}, **spec, "status": status})

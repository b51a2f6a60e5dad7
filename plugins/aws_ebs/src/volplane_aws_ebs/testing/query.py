"""The EC2 query protocol by the service model of botocore: from forms to parameters, from results to XML.

An unknown parameter is UnknownParameter; an unknown field of a result is a ModelViolation, a bug of the fake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

from botocore.session import Session

from volplane_aws_ebs.testing.faults import EC2Error
from volplane_testing.cloud import CloudFailure

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
_ENVELOPE = frozenset({"Action", "Version"})

Tree = dict[str, Any]


class ModelViolation(AssertionError):
    """A result of the fake does not conform to EC2's service model."""


class QueryProtocol:
    """Decodes requests and encodes responses. Immutable; safe for threads."""

    def __init__(self) -> None:
        self._model: Any = _model()
        self._known = frozenset(self._model.operation_names)

    def parameters(self, action: str, form: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of a request, typed as boto3 takes them.

        Raises EC2Error for what the model does not have.
        """
        if action not in self._known:
            raise EC2Error("InvalidAction", f"The action {action} is not valid for this web service.")
        shape = self._model.operation_model(action).input_shape
        tree: Tree = {}
        for key, text in form.items():
            if key not in _ENVELOPE:
                _insert(tree, key.split("."), text)
        params = _structure(shape, tree, "") if shape is not None else {}
        missing = [name for name in getattr(shape, "required_members", ()) if name not in params]
        if missing:
            raise EC2Error("MissingParameter", f"The request must contain the parameter {missing[0]}")
        return params

    def result(self, action: str, result: Mapping[str, Any], request_id: str) -> bytes:
        """Return the XML of a response. Raises ModelViolation for a field or value that the model does not have."""
        shape = self._model.operation_model(action).output_shape
        body = "<return>true</return>" if shape is None else "".join(_members(shape, result))
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="{_NAMESPACE}">'
            f"<requestId>{request_id}</requestId>{body}</{action}Response>"
        ).encode()

    def error(self, error: CloudFailure, request_id: str) -> bytes:
        """Return the XML of an error."""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
            f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
            f"</Error></Errors><RequestID>{request_id}</RequestID></Response>"
        ).encode()


@cache
def _model() -> Any:
    return Session().get_service_model("ec2")


# --- requests ---------------------------------------------------------------------------------------------------


def _insert(tree: Tree, path: list[str], text: str) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            raise EC2Error(
                "InvalidParameterValue", f"Parameter {'.'.join(path)} is given as a value and as a structure"
            )
        tree = below
    tree[path[-1]] = text


def _form_name(name: str, shape: Any) -> str:
    """Return the name of a member in a form."""
    query: str = shape.serialization.get("queryName", "")
    located: str = shape.serialization.get("name", name)
    return query or located[:1].upper() + located[1:]


def _structure(shape: Any, tree: Tree, where: str) -> dict[str, Any]:
    members = {_form_name(name, member): (name, member) for name, member in shape.members.items()}
    params: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in members:
            raise EC2Error("UnknownParameter", f"The parameter {where}{key} is not recognized")
        name, member = members[key]
        params[name] = _typed(member, value, f"{where}{key}")
    return params


def _typed(shape: Any, value: Any, where: str) -> Any:
    if shape.type_name == "structure":
        return _structure(shape, _branch(value, where), f"{where}.")
    if shape.type_name == "list":
        branches = _branch(value, where)
        try:
            order = sorted(branches, key=int)
        except ValueError:
            raise EC2Error("InvalidParameterValue", f"Parameter {where} is a list; its keys are numbers") from None
        return [_typed(shape.member, branches[key], f"{where}.{key}") for key in order]
    if isinstance(value, dict):
        raise EC2Error("UnknownParameter", f"The parameter {where}.{next(iter(value))} is not recognized")
    return _scalar(shape, value, where)


def _branch(value: Any, where: str) -> Tree:
    if not isinstance(value, dict):
        raise EC2Error("InvalidParameterValue", f"Parameter {where} is not a single value")
    return value


def _scalar(shape: Any, text: str, where: str) -> Any:
    try:
        if shape.type_name in ("integer", "long"):
            return int(text)
        if shape.type_name == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if shape.type_name in ("double", "float"):
            return float(text)
    except (KeyError, ValueError):
        raise EC2Error("InvalidParameterValue", f"Invalid value '{text}' for parameter {where}") from None
    return text


# --- responses ----------------------------------------------------------------------------------------------------


def _members(shape: Any, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        member = shape.members.get(name)
        if member is None:
            raise ModelViolation(f"{shape.name} has no member {name}")
        if value is not None:
            yield _element(member.serialization.get("name", name), member, value)


def _element(tag: str, shape: Any, value: Any) -> str:
    if shape.type_name == "structure":
        _expect(isinstance(value, Mapping), shape, value)
        return f"<{tag}>{''.join(_members(shape, value))}</{tag}>"
    if shape.type_name == "list":
        _expect(isinstance(value, list), shape, value)
        item = shape.member.serialization.get("name", "member")
        return f"<{tag}>{''.join(_element(item, shape.member, each) for each in value)}</{tag}>"
    return f"<{tag}>{escape(_text(shape, value))}</{tag}>"


def _text(shape: Any, value: Any) -> str:
    if shape.type_name == "boolean":
        _expect(isinstance(value, bool), shape, value)
        return "true" if value else "false"
    if shape.type_name in ("integer", "long"):
        _expect(isinstance(value, int) and not isinstance(value, bool), shape, value)
        return str(value)
    if shape.type_name == "timestamp":
        _expect(isinstance(value, float), shape, value)
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    _expect(isinstance(value, str), shape, value)
    _expect(not shape.metadata.get("enum") or value in shape.metadata["enum"], shape, value)
    return str(value)


def _expect(holds: bool, shape: Any, value: object) -> None:
    if not holds:
        raise ModelViolation(f"{value!r} is no {shape.type_name} {shape.name}")

"""Which code of gRPC a caller gets for an error: the whole table, and that no code says more than is known."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from volplane import errors
from volplane.csi.codes import CALLERS, CODES, NOT_FINAL, PROVEN, code_of, is_final
from volplane.csi.contract import SERVICES
from volplane.errors import BackendError

GRPC = {
    *("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
}


class OfAPlugin(errors.ResourceExhausted):
    """A class of a backend's own."""


def made(kind: type[BackendError], *, nothing_done: bool = False) -> BackendError:
    more = {errors.AttachedElsewhere: {"node": "n"}, errors.Fenced: {"fence": "1/a/b"}}.get(kind, {})
    error = kind("it went wrong", **more)
    error.nothing_done = nothing_done
    return error


def classes() -> Iterator[type[BackendError]]:
    for value in vars(errors).values():
        if inspect.isclass(value) and issubclass(value, BackendError):
            yield value
    yield OfAPlugin


def test_every_class_has_a_code_for_every_method() -> None:
    for kind in classes():
        for method in (*SERVICES["Controller"], *SERVICES["GroupController"], *SERVICES["Node"]):
            assert code_of(made(kind), method, nothing_there=False) in GRPC
    assert {kind for kind in classes() if kind not in CODES} == {BackendError, OfAPlugin}


@pytest.mark.parametrize("method", sorted(PROVEN))
def test_no_code_that_ends_the_callers_attempt_is_sent_while_something_may_be_there(method: str) -> None:
    for kind in classes():
        for nothing_done in (False, True):
            code = code_of(made(kind, nothing_done=nothing_done), method, nothing_there=False)
            assert code == "ALREADY_EXISTS" or not is_final(code, method), f"{kind.__name__} is {code}"
            assert (code == "ALREADY_EXISTS") == issubclass(kind, errors.AlreadyExists)


def test_what_the_callers_take_for_an_end_is_what_their_sources_say() -> None:
    goes_on = {"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "ABORTED"}
    assert {caller: set(codes) for caller, codes in NOT_FINAL.items()} == {
        "external-provisioner": goes_on,
        "external-attacher": goes_on | {"RESOURCE_EXHAUSTED"},
        "external-resizer": goes_on | {"RESOURCE_EXHAUSTED"},
        "external-snapshotter": goes_on | {"RESOURCE_EXHAUSTED"},
        "kubelet": goes_on | {"RESOURCE_EXHAUSTED"},
    }
    assert set(CALLERS) <= {*SERVICES["Controller"], *SERVICES["GroupController"], *SERVICES["Node"]}


@pytest.mark.parametrize(
    ("kind", "method", "code"),
    [
        (errors.OutOfRange, "CreateVolume", "OUT_OF_RANGE"),
        (errors.OutOfRange, "ControllerExpandVolume", "OUT_OF_RANGE"),
        (errors.InvalidArgument, "ControllerModifyVolume", "INVALID_ARGUMENT"),
        (errors.Unsupported, "CreateVolume", "INVALID_ARGUMENT"),
        (errors.AlreadyExists, "CreateVolume", "ALREADY_EXISTS"),
        (errors.AlreadyExists, "CreateSnapshot", "ALREADY_EXISTS"),
        (errors.AlreadyExists, "DeleteVolume", "FAILED_PRECONDITION"),
        (errors.AlreadyExists, "ControllerExpandVolume", "FAILED_PRECONDITION"),
        (errors.NotFound, "CreateVolume", "NOT_FOUND"),
        (errors.NotFound, "ControllerPublishVolume", "NOT_FOUND"),
        (errors.VolumeInUse, "DeleteVolume", "FAILED_PRECONDITION"),
        (errors.AttachedElsewhere, "ControllerPublishVolume", "FAILED_PRECONDITION"),
        (OfAPlugin, "CreateVolume", "RESOURCE_EXHAUSTED"),
        (errors.ResourceExhausted, "ControllerPublishVolume", "RESOURCE_EXHAUSTED"),
        (errors.PermissionDenied, "CreateVolume", "PERMISSION_DENIED"),
        (errors.Throttled, "CreateVolume", "UNAVAILABLE"),
        (errors.Fenced, "DeleteVolume", "UNAVAILABLE"),
        (errors.Declined, "CreateVolume", "ABORTED"),
        (errors.OutcomeUnknown, "DeleteVolume", "ABORTED"),
        (BackendError, "DeleteVolume", "ABORTED"),
    ],
)
def test_an_error_that_is_proven_has_its_own_code(kind: type[BackendError], method: str, code: str) -> None:
    assert code_of(made(kind), method, nothing_there=True) == code

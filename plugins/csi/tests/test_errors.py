"""Every code of gRPC, for every purpose of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from volplane import (
    AlreadyExists,
    BackendError,
    Done,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Throttled,
    Unavailable,
    Unsupported,
    VolumeInUse,
)
from volplane.csi.client import CallError
from volplane_csi.errors import Purpose, error_of
from volplane_testing.cloud import FaultKind

GIB = 1 << 30
USUAL: dict[str, type[BackendError]] = {
    "CANCELLED": BackendError,
    "UNKNOWN": BackendError,
    "INVALID_ARGUMENT": InvalidArgument,
    "DEADLINE_EXCEEDED": BackendError,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "PERMISSION_DENIED": PermissionDenied,
    "RESOURCE_EXHAUSTED": Throttled,
    "FAILED_PRECONDITION": Unavailable,
    "ABORTED": BackendError,
    "OUT_OF_RANGE": OutOfRange,
    "UNIMPLEMENTED": Unsupported,
    "INTERNAL": BackendError,
    "UNAVAILABLE": Unavailable,
    "DATA_LOSS": BackendError,
    "UNAUTHENTICATED": PermissionDenied,
}
EXPECTED: dict[Purpose, dict[str, type[BackendError]]] = {
    Purpose.PROVISION: {"RESOURCE_EXHAUSTED": ResourceExhausted},
    Purpose.DELETE: {"FAILED_PRECONDITION": VolumeInUse},
    Purpose.ATTACH: {"RESOURCE_EXHAUSTED": ResourceExhausted},
    Purpose.DETACH: {},
    Purpose.EXPAND: {"RESOURCE_EXHAUSTED": ResourceExhausted, "FAILED_PRECONDITION": VolumeInUse},
    Purpose.MODIFY: {},
    Purpose.SNAPSHOT: {"RESOURCE_EXHAUSTED": ResourceExhausted},
    Purpose.UNSNAPSHOT: {"FAILED_PRECONDITION": VolumeInUse},
    Purpose.READ: {},
}


def test_every_code_has_its_class() -> None:
    assert set(EXPECTED) == set(Purpose)
    assert set(USUAL) == {each.name for each in grpc.StatusCode} - {"OK"}
    for purpose, others in EXPECTED.items():
        for code, usual in USUAL.items():
            found = error_of(CallError("X", code, "why"), "do it", purpose)
            assert type(found) is others.get(code, usual), (purpose, code)
            assert (str(found), found.code) == (f"cannot do it: why ({code})", code)
            assert not found.nothing_left


def test_what_was_not_sent_has_done_nothing_and_says_nothing_of_earlier_calls() -> None:
    found = error_of(CallError("X", "UNAVAILABLE", "", sent=False), "do it", Purpose.ATTACH)
    assert found.nothing_done
    assert not found.nothing_left


def test_the_text_of_a_driver_is_one_short_line() -> None:
    found = error_of(CallError("X", "INTERNAL", f"a\n\tb{'c' * 5000}..."), "do it", Purpose.READ)
    assert found.message.startswith("cannot do it: a bccc")
    assert len(found.message) < 900


def call(world: Any, method: str) -> Callable[[], Any]:
    asset = world.provision()
    made = world.snapshot(asset)
    return {
        "DeleteVolume": lambda: world.delete(asset),
        "ControllerUnpublishVolume": lambda: world.detach(asset),
        "DeleteSnapshot": lambda: world.delete_snapshot(made.handle),
        "ControllerPublishVolume": lambda: world.attach(asset),
        "ControllerExpandVolume": lambda: world.expand(asset, 2 * GIB),
        "ControllerModifyVolume": lambda: world.modify(asset, iops="1"),
    }[method]


@pytest.mark.parametrize("method", ["DeleteVolume", "ControllerUnpublishVolume", "DeleteSnapshot"])
def test_what_is_not_there_is_gone(world: Any, method: str) -> None:
    act = call(world, method)
    world.refuse(method, "NOT_FOUND")
    assert act() == Done()


@pytest.mark.parametrize(
    "method", ["ControllerPublishVolume", "ControllerExpandVolume", "ControllerModifyVolume", "DeleteVolume"]
)
def test_a_lost_answer_leaves_the_outcome_open(world: Any, method: str) -> None:
    act = call(world, method)
    world.fault(method, FaultKind.LOSE)
    with pytest.raises(BackendError) as error:
        act()
    assert type(error.value) is BackendError
    assert not error.value.nothing_done
    act()

"""Whether an attachment keeps a volume for one node from every other one: what its status, its record, and this process
say of its call.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from unit.attach.objects import FINALIZER, attachment, bound
from unit.attach.test_attacher import attaching
from unit.deciding import state_with
from volplane.attach.attacher import intent_of
from volplane.attach.operation import may_be_attached
from volplane.kube import names
from volplane.kube.objects import VolumeAttachment, VolumeError
from volplane.state.progress import Attached, Attaching, Detached, Detaching
from volplane.state.records import write_intent

OLDER, NEWER = "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z"
MINE = attachment("node-b")


def failed(made: VolumeAttachment, code: int | None) -> VolumeAttachment:
    error = VolumeError(message="so it is", error_code=code)
    return replace(made, status=replace(made.status, attach_error=error))


def other(
    code: int | None = 0, *, job: tuple[str, dict[str, str] | None] | None = None, **more: Any
) -> VolumeAttachment:
    """The attachment of node-a. code: of the failure that it shows; 0 = none. job: hook and state on record."""
    annotations = {}
    if job is not None:
        record = replace(intent_of(bound()[1], attaching(), "uid-node-a", "test"), hook=job[0], state=job[1])
        annotations = {names.INTENT: write_intent(record)}
    made = attachment(**{"finalizers": [FINALIZER], "annotations": annotations, "created": OLDER, **more})
    return failed(made, code) if code != 0 else made


def keeps(there: VolumeAttachment, mine: VolumeAttachment = MINE, **known: Any) -> bool:
    """known: what this process knows of the other one."""
    cluster = state_with(there, mine)
    progress = cluster.progress.attachments.track(there.uid)
    for name, value in known.items():
        setattr(progress, name, value)
    return may_be_attached(there, mine, cluster)


@pytest.mark.parametrize(
    "known", [{}, {"step": Attached({})}, {"step": Attaching({}, 0.0)}, {"step": Detaching({}, 0.0)}]
)
def test_what_is_attached_or_has_a_job_under_way_keeps_the_volume(known: dict[str, Any]) -> None:
    assert keeps(other(attached=True), **known)
    assert keeps(other(3, finalizers=[]), **known) is bool(known)


def test_what_this_process_has_detached_does_not_whatever_the_status_says() -> None:
    assert not keeps(other(attached=True), step=Detached())
    assert not keeps(other(2), step=Detached())


def test_nothing_was_called_for_what_has_no_finalizer() -> None:
    assert not keeps(other(2, finalizers=["example.com/another"]))


@pytest.mark.parametrize(
    ("job", "expected"),
    [(("attach", {"job": "7"}), True), (("detach", {"job": "7"}), False), (("attach", None), False), (None, False)],
)
def test_a_job_of_a_former_process_keeps_it_though_a_failure_is_shown(job: Any, *, expected: bool) -> None:
    assert keeps(other(3, job=job)) is expected


@pytest.mark.parametrize(
    ("created", "mine", "expected"),
    [
        (OLDER, MINE, True),
        (NEWER, MINE, False),
        (NEWER, failed(MINE, 3), True),
        (MINE.metadata.creation_timestamp, MINE, False),
        (MINE.metadata.creation_timestamp, attachment("node-0", name="zz"), True),
    ],
    ids=["older", "newer", "newer, after a failure of the older one", "of one second, by name", "the same"],
)
def test_without_a_failure_the_older_one_was_begun_first(created: str, mine: Any, *, expected: bool) -> None:
    assert keeps(other(created=created, name="mm"), mine) is expected


@pytest.mark.parametrize(
    ("code", "expected"), [(3, False), (9, False), (12, False), (2, True), (14, True), (None, True)]
)
def test_after_a_failure_its_code_says_whether_it_has_had_an_effect(code: int | None, *, expected: bool) -> None:
    for created in (OLDER, NEWER):
        assert keeps(other(code, created=created), failed(MINE, 3)) is expected
        # What this process knows itself counts more.
        assert keeps(other(code, created=created), uncertain=True)
        assert not keeps(other(code, created=created), uncertain=False)

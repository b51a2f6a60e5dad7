"""What the node agent does next, and what it says about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from volplane_embedded.kubelet.pod_actions import (
    DeletePod,
    FailPod,
    Idle,
    KillContainers,
    MountVolumes,
    PodAction,
    StartContainer,
    TerminateContainers,
    UnmountVolumes,
    compute_pod_action,
    pod_phase,
)
from volplane_embedded.kubelet.pod_state import ContainerRecord, PodRecord, Terminated, new_record
from volplane_embedded.kubelet.status import generate_pod_status
from volplane_embedded.objects import Pod

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = "2026-01-01T00:00:00Z"


def pod(*containers: str, init: tuple[str, ...] = (), deleted: int | None = None, **spec: Any) -> Pod:
    metadata: dict[str, Any] = {"name": "web", "namespace": "default", "uid": "u"}
    if deleted is not None:
        metadata |= {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": deleted}
    spec["containers"] = [{"name": name} for name in containers or ("main",)]
    spec["initContainers"] = [{"name": name} for name in init]
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def prepared(one: Pod) -> PodRecord:
    record = new_record(one, BEGUN)
    record.prepared = True
    return record


def end(container: ContainerRecord, code: int = 0, mono: float = 0.0) -> None:
    container.launch()
    container.run(NOW, mono)
    container.end(Terminated(code, "Completed" if code == 0 else "Error", NOW, NOW), mono)


def start(container: ContainerRecord, mono: float = 0.0) -> None:
    container.launch()
    container.run(NOW, mono)


def step(one: Pod, record: PodRecord, *, mono: float = 0.0, age: float = 0.0, gone: bool = False) -> PodAction:
    return compute_pod_action(one, record, mono=mono, wall=BEGUN + timedelta(seconds=age), gone=gone)


def test_volumes_come_first_then_every_container() -> None:
    one = pod("a", "b")
    record = new_record(one, BEGUN)
    assert step(one, record) == MountVolumes()
    record.prepare_due = 2.0
    assert step(one, record) == Idle(2.0)
    record.prepared = True
    assert step(one, record) == StartContainer("a")
    record.main[0].launch()
    assert step(one, record) == StartContainer("b")
    start(record.main[1])
    assert step(one, record) == Idle()


def test_init_containers_run_one_after_the_other_before_the_rest() -> None:
    one = pod(init=("first", "second"))
    record = prepared(one)
    assert step(one, record) == StartContainer("first")
    start(record.init[0])
    assert step(one, record) == Idle()
    end(record.init[0])
    assert step(one, record) == StartContainer("second")
    assert pod_phase(one, record) == "Pending"
    end(record.init[1])
    assert step(one, record) == StartContainer("main")


@pytest.mark.parametrize(
    ("policy", "code", "again", "phase"),
    [
        ("Always", 0, True, "Running"),
        ("Always", 1, True, "Running"),
        ("OnFailure", 1, True, "Running"),
        ("OnFailure", 0, False, "Succeeded"),
        ("Never", 1, False, "Failed"),
        ("Never", 0, False, "Succeeded"),
    ],
)
def test_the_policy_decides_what_an_end_means(policy: str, code: int, again: bool, phase: str) -> None:
    one = pod(restartPolicy=policy)
    record = prepared(one)
    end(record.main[0], code)
    assert step(one, record) == (StartContainer("main") if again else UnmountVolumes())
    assert pod_phase(one, record) == phase


def test_restarts_come_at_once_then_after_ten_seconds_doubling_to_five_minutes() -> None:
    container = ContainerRecord("main")
    pauses = []
    for _ in range(8):
        end(container, 1)
        pauses.append(container.pause)
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    start(container)
    container.end(Terminated(1, "Error", NOW), 600.0)
    assert container.pause == 0


def test_a_container_in_back_off_is_shown_as_such() -> None:
    one = pod(restartPolicy="Always")
    record = prepared(one)
    end(record.main[0], 1)
    end(record.main[0], 1)
    assert step(one, record, mono=4.0) == Idle(6.0)
    [status] = generate_pod_status(one, record, mono=4.0, now=NOW)["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert status["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=main")
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert status["restartCount"] == 1
    assert step(one, record, mono=10.0) == StartContainer("main")


def test_an_init_container_is_only_tried_again_if_the_policy_says_so() -> None:
    for policy, expected in (("Never", UnmountVolumes()), ("Always", StartContainer("first"))):
        one = pod(init=("first",), restartPolicy=policy)
        record = prepared(one)
        end(record.init[0], 1)
        assert step(one, record) == expected


def test_a_deleted_pod_is_asked_waited_for_killed_cleared_away_and_removed() -> None:
    one = pod(deleted=5)
    record = prepared(one)
    start(record.main[0])
    assert step(one, record) == TerminateContainers()
    record.stopping = 100.0
    assert step(one, record, mono=101.0) == Idle(4.0)
    assert step(pod(deleted=1), record, mono=101.0) == KillContainers()
    assert step(one, record, mono=105.0) == KillContainers()
    record.killed = True
    assert step(one, record, mono=106.0) == Idle()
    record.main[0].end(Terminated(137, "Error", NOW), 106.0)
    assert step(one, record) == UnmountVolumes()
    record.torn_down = True
    assert step(one, record) == DeletePod()
    assert pod_phase(one, record) == "Failed"


def test_a_deleted_pod_of_which_nothing_ran_is_removed_as_failed() -> None:
    one = pod(deleted=30)
    record = new_record(one, BEGUN)
    assert step(one, record) == UnmountVolumes()
    record.torn_down = True
    assert step(one, record) == DeletePod()
    assert pod_phase(one, record) == "Failed"


def test_what_still_runs_of_a_pod_that_is_gone_is_killed_at_once() -> None:
    one = pod()
    record = prepared(one)
    start(record.main[0])
    assert step(one, record, gone=True) == TerminateContainers()
    record.stopping = 0.0
    assert step(one, record, gone=True) == KillContainers()


def test_the_deadline_counts_from_the_pods_start_and_wakes_the_agent() -> None:
    one = pod(activeDeadlineSeconds=10)
    record = prepared(one)
    start(record.main[0])
    assert step(one, record, age=3.0) == Idle(7.0)
    failed = step(one, record, age=10.0)
    assert isinstance(failed, FailPod)
    assert failed.reason == "DeadlineExceeded"
    record.failure = (failed.reason, failed.message)
    assert step(one, record, age=10.0) == TerminateContainers()
    assert pod_phase(one, record) == "Running"
    record.main[0].end(Terminated(143, "Error", NOW), 0.0)
    status = generate_pod_status(one, record, mono=0.0, now=NOW)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_finished_pod_has_no_deadline() -> None:
    one = pod(restartPolicy="Never", activeDeadlineSeconds=1)
    record = prepared(one)
    end(record.main[0])
    record.torn_down = True
    assert step(one, record, age=100.0) == Idle()


def test_a_container_that_cannot_be_started_is_tried_again_later() -> None:
    one = pod(restartPolicy="Never")
    record = prepared(one)
    for expected in (1.0, 2.0, 4.0):
        record.main[0].launch()
        record.main[0].refuse("CreateContainerError", "no such file", 0.0)
        assert step(one, record) == Idle(expected)
    [status] = generate_pod_status(one, record, mono=0.0, now=NOW)["containerStatuses"]
    assert status["state"] == {"waiting": {"reason": "CreateContainerError", "message": "no such file"}}
    assert (status["restartCount"], pod_phase(one, record)) == (0, "Pending")


def test_a_pod_is_ready_while_all_its_containers_run() -> None:
    one = pod("a", "b")
    record = prepared(one)
    start(record.main[0])

    def ready() -> dict[str, Any]:
        conditions = generate_pod_status(one, record, mono=0.0, now=NOW)["conditions"]
        found: dict[str, Any] = next(entry for entry in conditions if entry["type"] == "Ready")
        return found

    assert ready()["message"] == "containers with unready status: [b]"
    start(record.main[1])
    assert ready()["status"] == "True"

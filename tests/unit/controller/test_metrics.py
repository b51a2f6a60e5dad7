"""Metrics under the names that dashboards know."""

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from volplane.controller import metrics as metrics_module
from volplane.controller.metrics import Metrics
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, ClaimSpec, ClaimStatus, Metadata, Volume, VolumeSpec, VolumeStatus
from volplane.process.measuring import count_inventory


def value(metrics: Metrics, metric: str, /, **labels: str) -> float | None:
    metrics.exposition()  # The gauges of objects are made as it is read.
    found: float | None = metrics.registry.get_sample_value(metric, labels)
    return found


def volume(version: int, phase: str, **source: object) -> Volume:
    return Volume(
        metadata=Metadata(name="v", uid="u", resource_version=str(version)),
        spec=VolumeSpec(storage_class_name="fast", **source),  # type: ignore[arg-type]
        status=VolumeStatus(phase=phase),
    )


def claim(version: int, phase: str, name: str = "c", storage_class: str = "fast") -> Claim:
    return Claim(
        metadata=Metadata(name=name, namespace="default", uid=name, resource_version=str(version)),
        spec=ClaimSpec(storage_class_name=storage_class),
        status=ClaimStatus(phase=phase),
    )


def test_what_happened_is_counted_under_the_provisioners_names() -> None:
    metrics = Metrics()
    metrics.attempt_ended("provision", ("fast", ""), 0.2)
    metrics.attempt_ended("provision", ("fast", "VolumeSnapshot"), None)
    metrics.attempt_ended("delete", ("fast",), 0.3)
    metrics.attempt_ended("delete", ("fast",), None)
    prefix = "controller_persistentvolume"
    labels = {"class": "fast"}
    assert value(metrics, f"{prefix}claim_provision_total", source="", **labels) == 1
    assert value(metrics, f"{prefix}claim_provision_failed_total", source="VolumeSnapshot", **labels) == 1
    assert value(metrics, f"{prefix}claim_provision_duration_seconds_sum", source="", **labels) == 0.2
    assert value(metrics, f"{prefix}_delete_total", **labels) == 1
    assert value(metrics, f"{prefix}_delete_failed_total", **labels) == 1
    assert value(metrics, f"{prefix}_delete_duration_seconds_count", **labels) == 1


def test_operations_are_counted_under_the_binders_names() -> None:
    metrics = Metrics()
    metrics.operation_ended("d", "provision", 1.6, failed=True)
    metrics.hook_ended("d", "provision", 1.5, "Unavailable")
    metrics.hook_ended("d", "provision", 0.1, "in_progress")
    metrics.hook_ended("d", "provision", 2.0, "ok")
    metrics.hook_ended("d", "probe", 0.5, "ok")
    metrics.lives["d", "provision"].observe(3.5)
    metrics.retroactive[()].inc()
    metrics.retroactive_errors[()].inc()
    labels = {"volume_plugin": "d", "operation_name": "volume_provision", "migrated": "false"}
    assert value(metrics, "storage_operation_duration_seconds_sum", status="fail-unknown", **labels) == 1.5
    assert value(metrics, "storage_operation_duration_seconds_sum", status="success", **labels) == 2.0
    assert b"volume_probe" not in metrics.exposition()
    plugin = {"plugin_name": "d", "operation_name": "provision"}
    assert value(metrics, "volume_operation_errors_total", **plugin) == 1
    assert value(metrics, "volume_operation_total_seconds_sum", **plugin) == 3.5
    assert value(metrics, "volplane_operation_seconds_sum", driver="d", operation="provision") == 1.6
    assert value(metrics, "volplane_hook_calls_total", driver="d", hook="provision", result="in_progress") == 1
    assert value(metrics, "volplane_hook_seconds_count", driver="d", hook="provision") == 3
    assert value(metrics, "retroactive_storageclass_total") == 1
    assert value(metrics, "retroactive_storageclass_errors_total") == 1


def test_what_is_now_replaces_what_was() -> None:
    metrics = Metrics()
    metrics.drivers.show({"a": True, "b": False})
    metrics.drivers.show({"b": True})
    metrics.operations.show({("b", "attach", "running"): 3})
    metrics.operations.show({("b", "detach", "queued"): 2})
    metrics.leak_checked("b", 1000.0)
    metrics.leak_checked("b", None)
    metrics.findings["b", "orphan"].set(4)
    text = metrics.exposition().decode()
    assert 'volplane_driver_healthy{driver="b"} 1.0' in text
    assert 'driver="a"' not in text
    assert 'volplane_operations{driver="b",operation="detach",phase="queued"} 2.0' in text
    assert "running" not in text.partition("volplane_operations{")[2].splitlines()[0]
    assert 'volplane_leak_checks_total{driver="b",result="failed"} 1.0' in text
    assert 'volplane_leak_check_last_success_timestamp_seconds{driver="b"} 1000.0' in text
    assert 'volplane_leak_findings{driver="b",verdict="orphan"} 4.0' in text


def test_the_registry_is_the_one_that_is_passed_in_and_two_processes_do_not_share_one() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    Metrics().leading[("volplane",)].set(1)
    metrics.leading[("volplane",)].set(0)
    assert registry.get_sample_value("volplane_leading", {"lease": "volplane"}) == 0
    assert b'volplane_leading{lease="volplane"} 0.0' in metrics.exposition()


def test_calls_queues_and_passes_are_counted() -> None:
    metrics = Metrics()
    metrics.api_request("patch", "persistentvolumes", 409, 0.02)
    counters = metrics.queue_made("claims", lambda: 7)
    counters.added()
    counters.retried()
    metrics.count("pass ended", "claims", "wait")
    labels = {"method": "patch", "resource": "persistentvolumes"}
    assert value(metrics, "rest_client_requests_total", code="409", **labels) == 1
    assert value(metrics, "workqueue_depth", name="claims") == 7
    assert value(metrics, "workqueue_adds_total", name="claims") == 1
    assert value(metrics, "workqueue_retries_total", name="claims") == 1
    assert value(metrics, "volplane_reconcile_total", controller="claims", result="wait") == 1


def test_volumes_and_claims_are_counted_as_they_change() -> None:
    metrics = Metrics()
    volumes, claims = Cache(VOLUMES), Cache(CLAIMS)
    volumes.observe(volume(1, "Available", nfs={"server": "s"}))
    count_inventory(volumes, claims, metrics)
    claims.observe(claim(2, "Pending"))
    names = {"namespace": "default", "storage_class": "fast", "volume_attributes_class": ""}
    total = {"plugin_name": "kubernetes.io/nfs", "volume_mode": "Filesystem"}
    assert value(metrics, "pv_collector_total_pv_count", **total) == 1
    assert value(metrics, "pv_collector_unbound_pv_count", storage_class="fast") == 1
    assert value(metrics, "pv_collector_unbound_pvc_count", **names) == 1
    volumes.observe(volume(3, "Bound", nfs={"server": "s"}))
    claims.observe(claim(4, "Bound"))
    assert value(metrics, "pv_collector_total_pv_count", **total) == 1
    assert value(metrics, "pv_collector_unbound_pv_count", storage_class="fast") is None
    assert value(metrics, "pv_collector_bound_pv_count", storage_class="fast") == 1
    assert value(metrics, "pv_collector_bound_pvc_count", **names) == 1
    claims.observe_deleted("default/c", "c")
    assert value(metrics, "pv_collector_bound_pvc_count", **names) is None
    metrics.counted = Counter()
    assert value(metrics, "pv_collector_total_pv_count", **total) is None
    volumes.observe(volume(5, "Released", csi={"driver": "ebs.csi.aws.com"}))
    assert (
        value(metrics, "pv_collector_total_pv_count", plugin_name="ebs.csi.aws.com", volume_mode="Filesystem") is None
    )


def unbound(metrics: Metrics) -> dict[str, float]:
    """The claims that are not bound, by class."""
    metrics.exposition()
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    name = "pv_collector_unbound_pvc_count"
    return {sample.labels["storage_class"]: sample.value for sample in samples if sample.name == name}


def test_labels_that_a_tenant_has_made_up_are_forgotten_with_its_claims() -> None:
    metrics, claims = Metrics(), Cache(CLAIMS)
    count_inventory(Cache(VOLUMES), claims, metrics)
    for number in range(100):
        claims.observe(claim(2 * number + 1, "Pending", f"c-{number}", f"made-up-{number}"))
        claims.observe_deleted(f"default/c-{number}", f"c-{number}")
    assert unbound(metrics) == {}


def test_claims_beyond_the_bound_of_series_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MOST_SERIES", 2)
    metrics, claims = Metrics(), Cache(CLAIMS)
    count_inventory(Cache(VOLUMES), claims, metrics)
    for number in range(6):
        claims.observe(claim(number + 1, "Pending", f"c-{number}", f"class-{number // 2}"))
    assert unbound(metrics) == {"class-0": 2, "class-1": 2, "(other)": 2}
    claims.observe_deleted("default/c-0", "c-0")
    claims.observe_deleted("default/c-1", "c-1")
    claims.observe_deleted("default/c-4", "c-4")
    claims.observe(claim(9, "Pending", "new", "new"))
    assert unbound(metrics) == {"class-1": 2, "class-2": 1, "(other)": 1}
    claims.observe_deleted("default/c-2", "c-2")
    claims.observe_deleted("default/c-3", "c-3")
    claims.observe(claim(10, "Pending", "newer", "newer"))
    assert unbound(metrics) == {"class-2": 1, "new": 1, "(other)": 1}


def test_csi_volumes_are_counted_by_driver() -> None:
    metrics = Metrics()
    volumes = Cache(VOLUMES)
    count_inventory(volumes, Cache(CLAIMS), metrics)
    volumes.observe(volume(1, "Available", csi={"driver": "ebs.csi.aws.com"}))
    labels = {"plugin_name": "ebs.csi.aws.com", "volume_mode": "Filesystem"}
    assert value(metrics, "pv_collector_total_pv_count", **labels) == 1


def test_no_series_says_only_when_another_was_made() -> None:
    metrics = Metrics()
    counters = metrics.queue_made("claims", lambda: 0)
    counters.added()
    counters.waited(0.2)
    assert b"workqueue_adds_total" in metrics.exposition()
    assert b"_created" not in metrics.exposition()

"""What is counted of a claim's life, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane import Asset, InProgress, Unavailable, VolumeSource
from volplane.controller import logs
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from volplane.kube.names import DEFAULT_CLASS
from volplane_testing import Answer, FailBefore
from volplane_testing.transport import ApiCall, refuse

Tell = Callable[[Any], Any]
PLUGIN = "shelf.example.com"


def values(cluster: Any, *metrics: str) -> list[float | None]:
    """Of metrics as `name{label=value}`."""
    cluster.metrics.exposition()  # The gauges of objects are made as it is read.
    found = []
    for metric in metrics:
        name, _, labels = metric.rstrip("}").partition("{")
        pairs = dict(pair.split("=") for pair in labels.split(",") if pair)
        found.append(cluster.metrics.registry.get_sample_value(name, pairs))
    return found


async def test_a_life_cycle_is_counted_once_under_every_name(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    for name in ("a", "b"):
        await cluster.claim(name)
    await asyncio.sleep(5)
    await cluster.client.delete(CLAIMS, "default/a")
    await asyncio.sleep(30)
    provision, delete = "controller_persistentvolumeclaim_provision", "controller_persistentvolume_delete"
    assert values(
        cluster,
        f"{provision}_total{{class=shelves,source=}}",
        f"{provision}_duration_seconds_count{{class=shelves,source=}}",
        f"{provision}_failed_total{{class=shelves,source=}}",
        f"{delete}_total{{class=shelves}}",
        f"{delete}_duration_seconds_count{{class=shelves}}",
        f"{delete}_failed_total{{class=shelves}}",
        f"volume_operation_total_seconds_count{{plugin_name={PLUGIN},operation_name=provision}}",
        f"volume_operation_total_seconds_count{{plugin_name={PLUGIN},operation_name=delete}}",
        "pv_collector_total_pv_count{plugin_name=kubernetes.io/host-path,volume_mode=Filesystem}",
        "pv_collector_bound_pv_count{storage_class=shelves}",
        "pv_collector_unbound_pv_count{storage_class=shelves}",
        "pv_collector_bound_pvc_count{namespace=default,storage_class=shelves,volume_attributes_class=}",
    ) == [2, 2, None, 1, 1, None, 2, 1, 1, 1, None, 1]


async def test_a_wait_counts_from_the_first_attempt_and_only_the_last_one_is_a_success(
    cluster: Any, shelf: Any, hooks: Any
) -> None:
    await cluster.make_class()
    hooks.fail("provision", [FailBefore(Unavailable("away", retry_after=100))] * 2)
    hooks.fail("delete", Answer(InProgress(retry_after=50), effect=False))
    await cluster.claim()
    await asyncio.sleep(250)
    await cluster.client.delete(CLAIMS, "default/data")
    await asyncio.sleep(100)
    operation = "volume_operation_total_seconds_sum"
    provisioned, deleted = values(
        cluster,
        f"{operation}{{plugin_name={PLUGIN},operation_name=provision}}",
        f"{operation}{{plugin_name={PLUGIN},operation_name=delete}}",
    )
    assert provisioned is not None
    assert 200 <= provisioned < 201
    assert deleted is not None
    assert 50 <= deleted < 52
    assert values(
        cluster,
        "controller_persistentvolumeclaim_provision_total{class=shelves,source=}",
        "controller_persistentvolumeclaim_provision_failed_total{class=shelves,source=}",
        "controller_persistentvolume_delete_total{class=shelves}",
        "controller_persistentvolume_delete_failed_total{class=shelves}",
    ) == [1, 2, 1, None]


async def test_an_asset_that_is_too_small_is_a_failure(cluster: Any, shelf: Any, hooks: Any) -> None:
    await cluster.make_class()
    source = VolumeSource(kind="hostPath", fields={"path": "/shelves/small"})
    hooks.fail("provision", Answer(Asset(handle="shelf/small", source=source, capacity_bytes=1), effect=False))
    await cluster.claim()
    await asyncio.sleep(5)
    shape = "controller_persistentvolumeclaim_provision{}_total{{class=shelves,source=}}"
    assert values(cluster, shape.format("_failed"), shape.format("")) == [1, 1]


async def test_cleaning_up_after_a_claim_is_no_attempt(cluster: Any, shelf: Any, hooks: Any) -> None:
    await cluster.make_class()
    hooks.fail("provision", FailBefore(Unavailable("away", retry_after=100)))
    await cluster.claim()
    await asyncio.sleep(1)
    await cluster.client.delete(CLAIMS, "default/data")
    await asyncio.sleep(200)
    assert (await cluster.client.list(CLAIMS)).items == []
    assert values(
        cluster,
        "controller_persistentvolumeclaim_provision_failed_total{class=shelves,source=}",
        "controller_persistentvolume_delete_total{class=shelves}",
        f"volume_operation_total_seconds_count{{plugin_name={PLUGIN},operation_name=provision}}",
    ) == [1, None, None]


async def test_claims_that_get_the_default_class_later_are_counted_and_so_are_refusals(
    cluster: Any, shelf: Any
) -> None:
    body = CLAIMS.body(
        metadata={"name": "data", "namespace": "default"},
        spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    )
    await cluster.client.create(CLAIMS, body)
    await asyncio.sleep(1)

    def gives_a_class(call: ApiCall) -> bool:
        return call.verb == "patch" and b'"storageClassName"' in (call.request.body or b"")

    cluster.faults.add(gives_a_class, refuse(409, "somebody was faster"), times=2)
    await cluster.make_class()
    default = {"metadata": {"annotations": {DEFAULT_CLASS: "true"}}}
    await cluster.client.patch(STORAGE_CLASSES, "shelves", default)
    await asyncio.sleep(60)
    assert (await cluster.client.get(CLAIMS, "default/data")).spec.storage_class_name == "shelves"
    assert values(cluster, "retroactive_storageclass_total", "retroactive_storageclass_errors_total") == [1, 2]


async def test_what_a_hook_logs_carries_operation_driver_and_object(cluster: Any, shelf: Any, hooks: Any) -> None:
    seen: dict[str, dict[str, str]] = {}

    class Noting:
        def __init__(self, hook: str) -> None:
            self.hook = hook

        def play(self, call: Any, _pause: Any) -> Any:
            seen[self.hook] = dict(logs.fields())
            return call()

    for hook in ("list_assets", "provision", "delete"):
        hooks.fail(hook, Noting(hook))
    await cluster.make_class()
    uid = await cluster.claim()
    await asyncio.sleep(5)
    volume = (await cluster.client.get(VOLUMES, f"pvc-{uid}")).uid
    await cluster.client.delete(CLAIMS, "default/data")
    await asyncio.sleep(30)
    assert seen["list_assets"] == {"driver": PLUGIN}
    spans = {seen[hook].pop("span") for hook in ("provision", "delete")}
    assert len(spans) == 2, "of one pass each"
    assert seen["provision"] == {
        "controller": "claims",
        "object": "default/data",
        "operation": f"provision-default/data[{uid}]",
        "driver": PLUGIN,
        "trace": uid.replace("-", ""),
    }
    assert seen["delete"] == {
        "controller": "volumes",
        "object": f"pvc-{uid}",
        "operation": f"delete-pvc-{uid}[{volume}]",
        "driver": PLUGIN,
        "trace": uid.replace("-", ""),
    }

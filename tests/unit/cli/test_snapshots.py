"""`volplane restore` on a cluster where no controller runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from volplane.cli.controller_client import Access
from volplane.cli.main import main
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES
from volplane.snapshots.objects import VOLUME_SNAPSHOTS

pytestmark = pytest.mark.real_time


def test_a_claim_that_is_not_bound_in_time_is_explained_and_nothing_that_a_tenant_wrote_is_obeyed(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def prepare() -> None:
        async with Access(kubeconfig=Path(kubeconfig)).cluster() as (client, _):
            fast = STORAGE_CLASSES.body(
                metadata={"name": "fast"},
                provisioner="absent.example.com",
                reclaimPolicy="Delete",
                volumeBindingMode="WaitForFirstConsumer",
            )
            await client.create(STORAGE_CLASSES, fast)
            source = {"source": {"persistentVolumeClaimName": "\x1b[2Jdata"}}
            await client.create(
                VOLUME_SNAPSHOTS, VOLUME_SNAPSHOTS.body(metadata={"name": "s", "namespace": "default"}, spec=source)
            )

    asyncio.run(prepare())
    here = ("--kubeconfig", kubeconfig)
    asked = ["restore", "s", "--claim", "back", *here, "--http", "127.0.0.1:9", "--wait", "--timeout", "0.2"]
    assert main(asked) == 1
    told = capsys.readouterr()
    assert "which class? claim \\x1b[2Jdata of the snapshot is gone: name one with --class" in told.err
    asked += ["--class", "fast", "--size", "1Gi", "--access-mode", "ReadWriteOnce"]
    assert main(asked) == 1
    told = capsys.readouterr()
    assert "claim default/back of snapshot default/s is made: 1Gi, ReadWriteOnce, class fast" in told.out
    assert "its class fast makes volumes once a pod uses the claim" in told.out
    assert "claim default/back is not bound yet" in told.out
    assert "no controller answers at 127.0.0.1:9" in told.out
    assert "\x1b[2J" not in told.out + told.err
    assert main(["restore", "s", "--claim", "back", "-n", "../x", *here]) == 1
    assert 'namespace: "../x" cannot be the name of an object' in capsys.readouterr().err


def test_waiting_ends_where_only_a_pod_is_missing(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def prepare() -> None:
        async with Access(kubeconfig=Path(kubeconfig)).cluster() as (client, _):
            late = {"provisioner": "absent.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
            await client.create(STORAGE_CLASSES, STORAGE_CLASSES.body(metadata={"name": "late"}, **late))
            source = {"source": {"persistentVolumeClaimName": "data"}}
            body = VOLUME_SNAPSHOTS.body(metadata={"name": "s", "namespace": "default"}, spec=source)
            await client.create(VOLUME_SNAPSHOTS, body)
            status = {"readyToUse": True, "restoreSize": "1Gi", "creationTime": "2026-01-01T00:00:00Z"}
            await client.patch(VOLUME_SNAPSHOTS, "default/s", {"status": status}, subresource="status")

    asyncio.run(prepare())
    asked = ["restore", "s", "--claim", "back", "--class", "late", "--access-mode", "ReadWriteOnce", "--wait"]
    for _ in range(2):  # The second time it is there already.
        assert main([*asked, "--kubeconfig", kubeconfig]) == 0
        told = capsys.readouterr()
        assert "its class late makes volumes once a pod uses the claim" in told.out
        assert "claim default/back can be used: a pod that uses it has it bound" in told.out


def test_a_claim_without_a_namespace_is_one_of_the_namespace_default(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--kubeconfig", kubeconfig)
    assert main(["snapshot", "absent", *here]) == 1
    assert "there is no claim default/absent" in capsys.readouterr().err
    assert main(["snapshot", "team-a/", *here]) == 1
    assert 'the claim "team-a/" must be NAME or NAMESPACE/NAME' in capsys.readouterr().err


async def test_what_a_snapshot_waits_for_is_told_with_what_to_do(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"message": "terminal: cannot find default snapshot class of driver d"}
    async with Access(kubeconfig=Path(kubeconfig)).cluster() as (client, _):
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = CLAIMS.body(metadata={"name": "cut", "namespace": "default"}, spec=spec)
        await client.create(CLAIMS, claim)
        await client.patch(CLAIMS, "default/cut", {"status": {"phase": "Bound"}}, subresource="status")
        asked = ["snapshot", "cut", "--name", "s", "--kubeconfig", kubeconfig]
        ended = asyncio.create_task(asyncio.to_thread(main, asked))
        while await client.find(VOLUME_SNAPSHOTS, "default/s") is None:
            await asyncio.sleep(0.05)
        await client.patch(VOLUME_SNAPSHOTS, "default/s", {"status": {"error": error}}, subresource="status")
        assert await ended == 1
    told = capsys.readouterr()
    assert "snapshot default/s is not cut yet: terminal: cannot find" in told.out
    assert "name one with --class, or mark one as the default by the annotation snapshot.storage" in told.out
    assert "waiting for snapshot default/s  terminal: cannot find" in told.err

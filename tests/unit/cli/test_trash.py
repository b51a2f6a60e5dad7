"""`volplane trash` and `volplane undelete` on a cluster where no controller runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from unit.cli.test_leaks import controller
from volplane.cli.controller_client import Access
from volplane.cli.main import main
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from volplane.kube.names import TRASHED, UNDELETE

pytestmark = pytest.mark.real_time
RECORD = {"v": 1, "claim": "uid-1", "until": "2100-01-01T00:00:00Z", "since": "2026-01-01T00:00:00Z"}


def on(kubeconfig: str, what: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with Access(kubeconfig=Path(kubeconfig)).cluster() as (client, _):
            return await what(client)

    return asyncio.run(run())


def put(
    kubeconfig: str, name: str = "pvc-uid-1", record: str = json.dumps({**RECORD, "released": "default/gone"})
) -> None:
    body = VOLUMES.body(
        metadata={"name": name, "annotations": {TRASHED: record}},
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/{name}"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "kept",
        },
    )
    on(kubeconfig, lambda client: client.create(VOLUMES, body))


def test_the_trash_is_shown_and_purged_only_if_a_person_insists(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--kubeconfig", kubeconfig)
    assert main(["trash", *here]) == 0
    assert "nothing is in the trash" in capsys.readouterr().out
    put(kubeconfig)
    put(kubeconfig, "odd", "\x1b[31m{")
    assert main(["trash", *here]) == 0
    shown = capsys.readouterr().out
    assert "pvc-uid-1" in shown
    assert "default/gone" in shown
    assert "\x1b" not in shown
    assert main(["trash", "-n", "other", *here]) == 0
    assert "nothing is in the trash" in capsys.readouterr().out
    assert main(["trash", "-n", "default", "-o", "json", *here]) == 0
    (row,) = json.loads(capsys.readouterr().out)["volumes"]
    assert (row["claim_uid"], row["until"], row["capacity_bytes"]) == ("uid-1", RECORD["until"], 1 << 30)
    assert main(["status", "-o", "json", "--http", f"127.0.0.1:{free_port()}", *here]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trash"] == {"volumes": 2, "bytes": 2 << 30}
    assert [each["kind"] for each in told["waiting"]] == ["claim"]
    put(kubeconfig, "late", json.dumps({**RECORD, "until": "2020-01-01T00:00:00Z"}))
    assert main(["status", "--http", f"127.0.0.1:{free_port()}", *here]) == 0
    assert "in the trash are 3 volumes, 3Gi together, the time of 1 is over" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["trash", "--yes", *here]) == 2
    assert main(["trash", "--purge", "pvc-uid-1", *here]) == 0
    assert on(kubeconfig, lambda client: client.find(VOLUMES, "pvc-uid-1")) is not None
    assert main(["trash", "--purge", "pvc-uid-1", "--yes", *here]) == 0
    gone = on(kubeconfig, lambda client: client.find(VOLUMES, "pvc-uid-1"))
    assert gone is None or gone.terminating
    assert main(["trash", "--purge", "pvc-uid-1", "--yes", *here]) == 1


def test_undelete_says_what_it_waits_for_and_refuses_nonsense(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--kubeconfig", kubeconfig)
    put(kubeconfig)
    for nonsense in ("a/b/c", "/data", "default/"):
        assert main(["undelete", "pvc-uid-1", "--claim", nonsense, *here]) == 1
        assert "must be NAME or NAMESPACE/NAME" in capsys.readouterr().err
    assert main(["undelete", "absent", "--claim", "default/data", *here]) == 1
    assert "volume absent is not in the trash: it does not exist" in capsys.readouterr().err
    assert main(["undelete", "pvc-uid-1", "--claim", "default/back", "--timeout", "100ms", *here]) == 1
    assert "`volplane explain pvc default/back` says why" in capsys.readouterr().out
    made = on(kubeconfig, lambda client: client.get(CLAIMS, "default/back"))
    assert (made.spec.volume_name, made.annotation(UNDELETE)) == ("pvc-uid-1", "uid-1")
    assert (made.spec.storage_class_name, made.spec.access_modes) == ("kept", ["ReadWriteOnce"])


ARCHIVE = {
    "driver": "dirs.example.com",
    "place": "/exports/.volplane/archive/pvc-1\x1b[2J",
    "volume": "pvc-1",
    "claim": "team/data",
    "capacity_bytes": 1 << 30,
    "archived_at": 1_767_225_600.0,
    "until": None,
}


def test_archives_of_backends_of_directories_are_listed_apart(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(kubeconfig)
    sooner = {**ARCHIVE, "volume": "pvc-2", "claim": "", "capacity_bytes": None, "until": 1_767_312_000.0}
    answer = {"archives": [ARCHIVE, sooner], "untold": {"nfs.example.com": "no answer"}}
    with controller({}, {"/archives": lambda _: answer}) as address:
        here = ("--kubeconfig", kubeconfig, "--http", address)
        assert main(["trash", "-A", *here]) == 0
        volumes, archives = capsys.readouterr().out.split("Archives")
        assert main(["trash", "-n", "team", "-o", "json", *here]) == 0
        told = json.loads(capsys.readouterr().out)
        assert main(["trash", "--purge", "pvc-uid-1", *here]) == 0
        assert "Archives" not in capsys.readouterr().out
    assert "pvc-uid-1" in volumes
    assert "pvc-1" not in volumes
    first, second, note = archives.splitlines()[-3:]
    moments = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]
    assert first.split() == [
        "pvc-2",
        "dirs.example.com",
        "-",
        "-",
        *moments,
        "/exports/.volplane/archive/pvc-1\\x1b[2J",
    ]
    assert second.split()[:5] == ["pvc-1", "dirs.example.com", "1Gi", "team/data", "2026-01-01T00:00:00Z"]
    assert "a person removes it" in second
    assert note == "archives of driver nfs.example.com are not known: no answer"
    assert "\x1b" not in archives
    assert [each["volume"] for each in told["archives"]] == ["pvc-1"]
    assert told["volumes"] == []


def test_that_archives_are_not_known_is_said_where_a_class_archives(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--kubeconfig", kubeconfig, "--http", f"127.0.0.1:{free_port()}")
    assert main(["trash", *here]) == 0
    assert "archives" not in capsys.readouterr().out
    kept = STORAGE_CLASSES.body(
        metadata={"name": "kept"}, provisioner="d.example.com", parameters={"onDelete": "archive"}
    )
    on(kubeconfig, lambda client: client.create(STORAGE_CLASSES, kept))
    assert main(["trash", *here]) == 0
    assert "archives are not known: no controller answers at" in capsys.readouterr().out
    with controller({}, {}) as address:
        assert main(["trash", *here[:-1], address]) == 0
    assert "archives are not known: " in capsys.readouterr().out

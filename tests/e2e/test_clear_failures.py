"""What goes wrong is said on the claim within 5 s, with what to do, and heals when its cause goes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.processes import kubectl, objects, running, until

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

SAID_WITHIN = 30.0
HEALED_WITHIN = 60.0


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 16 MiB."""
    directory = tmp_path_factory.mktemp("disk")
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)):
        pytest.skip("mounting a small file system needs root")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=False)


@pytest.fixture(scope="module")
def kubeconfig(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("dev")
    path = directory / "kubeconfig"
    arguments = ("--port", "0", "--http", "127.0.0.1:0", "--kubeconfig-out", str(path), "--volumes", str(root))
    with running(directory / "log", "dev", *arguments) as command:
        until("the cluster is up", lambda: path.exists() and "Ctrl-C" in command.said(), said=command.said)
        yield path
        assert "Traceback" not in command.said(), command.said()


def create_class(kubeconfig: Path, name: str, parameters: str = "{}") -> None:
    text = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nprovisioner: hostpath.volplane.dev\n"
    kubectl(kubeconfig, "create", "-f", "-", given=f"{text}metadata: {{name: {name}}}\nparameters: {parameters}\n")


def create_claim(kubeconfig: Path, name: str, storage_class: str, size: str = "1Mi", more: str = "") -> None:
    spec = f"storageClassName: '{storage_class}', accessModes: [ReadWriteOnce]{more}"
    text = f"""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: default}}
spec: {{{spec}, resources: {{requests: {{storage: {size}}}}}}}
"""
    kubectl(kubeconfig, "create", "-f", "-", given=text)


def warnings(kubeconfig: Path, claim: str) -> str:
    """All warning messages about the claim."""
    return "\n".join(
        event["message"]
        for event in objects(kubeconfig, "events")
        if event["involvedObject"]["name"] == claim and event["type"] == "Warning"
    )


def expect_warning(kubeconfig: Path, claim: str, *words: str) -> None:
    until(
        f"a warning about {claim} says {words}",
        lambda: all(word in warnings(kubeconfig, claim) for word in words),
        SAID_WITHIN,
        said=lambda: warnings(kubeconfig, claim),
    )


def expect_bound(kubeconfig: Path, claim: str) -> None:
    def bound() -> bool:
        return kubectl(kubeconfig, "get", "pvc", claim, "-o", "jsonpath={.status.phase}") == "Bound"

    until(f"{claim} is bound", bound, HEALED_WITHIN, said=lambda: warnings(kubeconfig, claim))


def delete_claim(kubeconfig: Path, name: str) -> None:
    kubectl(kubeconfig, "delete", "pvc", name, "--timeout=60s")


def test_an_unknown_class_is_named_and_the_claim_binds_once_the_class_exists(kubeconfig: Path) -> None:
    create_claim(kubeconfig, "unknown-class", "later")
    expect_warning(kubeconfig, "unknown-class", 'storageclass.storage.k8s.io "later" not found')
    create_class(kubeconfig, "later")
    expect_bound(kubeconfig, "unknown-class")
    delete_claim(kubeconfig, "unknown-class")


def test_a_misspelt_parameter_is_named_with_the_nearest_valid_one(kubeconfig: Path) -> None:
    create_class(kubeconfig, "misspelt", "{mod: '0700'}")
    create_claim(kubeconfig, "bad-parameter", "misspelt")
    expect_warning(kubeconfig, "bad-parameter", "mod", "mode", "misspelt")
    kubectl(kubeconfig, "delete", "storageclass", "misspelt")
    create_class(kubeconfig, "misspelt", "{mode: '0700'}")
    expect_bound(kubeconfig, "bad-parameter")
    delete_claim(kubeconfig, "bad-parameter")


def test_a_selector_that_nothing_matches_says_what_to_do_and_takes_a_volume_that_comes(
    kubeconfig: Path, root: Path
) -> None:
    create_class(kubeconfig, "selected")
    create_claim(kubeconfig, "choosy", "selected", more=", selector: {matchLabels: {tier: gold}}")
    expect_warning(kubeconfig, "choosy", "selector", "labels")
    directory = root / "gold"
    directory.mkdir()
    volume = f"""
apiVersion: v1
kind: PersistentVolume
metadata: {{name: gold, labels: {{tier: gold}}}}
spec:
  storageClassName: selected
  capacity: {{storage: 1Mi}}
  accessModes: [ReadWriteOnce]
  hostPath: {{path: {directory}}}
"""
    kubectl(kubeconfig, "create", "-f", "-", given=volume)
    expect_bound(kubeconfig, "choosy")
    delete_claim(kubeconfig, "choosy")
    kubectl(kubeconfig, "delete", "pv", "gold", "--timeout=60s")


def test_a_full_disk_is_reported_with_its_size_and_used_once_it_grows(kubeconfig: Path, root: Path) -> None:
    create_class(kubeconfig, "full")
    create_claim(kubeconfig, "too-big", "full", size="64Mi")
    expect_warning(kubeconfig, "too-big", "next attempt", str(root))
    assert mount("-o", "remount,size=256m", str(root))
    expect_bound(kubeconfig, "too-big")
    delete_claim(kubeconfig, "too-big")


def test_a_root_that_cannot_be_written_is_reported_and_used_once_it_can(kubeconfig: Path, root: Path) -> None:
    create_class(kubeconfig, "read-only")
    assert mount("-o", "remount,ro", str(root))
    try:
        create_claim(kubeconfig, "unwritable", "read-only")
        expect_warning(kubeconfig, "unwritable", "read-only", str(root))
    finally:
        assert mount("-o", "remount,rw", str(root))
    expect_bound(kubeconfig, "unwritable")
    delete_claim(kubeconfig, "unwritable")

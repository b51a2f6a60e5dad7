"""The how-to and the example deployment: what they show is what the backend takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from volplane.drivers.contract import Plugin
from volplane.drivers.loading import build_driver
from volplane_csi import CsiBackend
from volplane_csi.testing import Behaviour

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "how-to" / "use-a-csi-driver-as-a-backend.md"
EXAMPLE = REPOSITORY / "deploy" / "csi-driver-host-path"
KEY = "topology.hostpath.csi/node"


def shown() -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration and the class of the page."""
    configuration, storage_class = map(
        yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    )
    return configuration, storage_class


def test_the_configuration_and_the_class_of_the_page_make_a_volume(new_world: Any) -> None:
    configuration, storage_class = shown()
    (configured,) = configuration["drivers"]
    assert configured["backend"] == "csi"
    assert configured["name"] == storage_class["provisioner"]
    behaviour = Behaviour(name=configured["name"], zones=("node-1",), topology_key=KEY)
    world = new_world(behaviour, csi_driver_name=configured["name"], **configured["options"])
    asset = world.provision(segment={KEY: "node-1"}, parameters=storage_class["parameters"])
    assert asset.source.fields["driver"] == "hostpath.csi.k8s.io"
    assert asset.source.fields["fsType"] == "ext4"
    plugin = Plugin(kind="backend", name="csi", factory=CsiBackend)
    info = build_driver(configured["name"], plugin, configured["options"]).view.info
    assert (info.csi_driver_name, info.topology_keys) == (configured["name"], (KEY,))


@pytest.fixture(scope="module")
def rights() -> str:
    """What the command of the example prints."""
    (command,) = re.findall(
        r"^\$ volplane (.*) > rights\.yaml$", (EXAMPLE / "README.md").read_text("utf-8"), re.MULTILINE
    )
    words = [str(EXAMPLE / each) if each == "volplane.yaml" else each for each in shlex.split(command)]
    command = [sys.executable, "-m", "volplane", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.soak
def test_the_example_patches_what_there_is_and_shares_the_socket(rights: str) -> None:
    printed = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(rights) if each}
    patches = list(yaml.safe_load_all((EXAMPLE / "patch.yaml").read_text("utf-8")))
    assert {(each["kind"], each["metadata"]["name"]) for each in patches} <= printed.keys()
    (configured,) = yaml.safe_load((EXAMPLE / "volplane.yaml").read_text("utf-8"))["drivers"]
    assert configured == shown()[0]["drivers"][0]
    pod = patches[1]["spec"]["template"]["spec"]
    own = printed["Deployment", "volplane"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["name"] == own["containers"][0]["name"]
    mounted = {
        each["name"]: each["mountPath"] for container in pod["containers"][:2] for each in container["volumeMounts"]
    }
    assert configured["options"]["socket"] == f"{mounted['socket']}/csi.sock"
    assert f"--endpoint=unix://{configured['options']['socket']}" in pod["containers"][1]["args"]
    volumes = {each["name"] for each in pod["volumes"]}
    assert {each["name"] for container in pod["containers"] for each in container["volumeMounts"]} == volumes


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl merges the patches")
def test_kubectl_makes_one_pod_of_it(tmp_path: Path, rights: str) -> None:
    (tmp_path / "rights.yaml").write_text(rights)
    for name in ("kustomization.yaml", "driver.yaml", "patch.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    made = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    (deployment,) = [each for each in yaml.safe_load_all(made.stdout) if each["kind"] == "Deployment"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    assert {each["name"] for each in pod["containers"]} == {"volplane", "hostpath", "node-driver-registrar"}
    (volplane,) = [each for each in pod["containers"] if each["name"] == "volplane"]
    assert {each["name"] for each in volplane["volumeMounts"]} == {"configuration", "temporary", "socket"}
    assert pod["securityContext"]["runAsUser"] == 0

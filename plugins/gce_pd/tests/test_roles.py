"""The role in the documentation is what the code needs, and no more."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import volplane_gce_pd
from volplane import AccessMode, Ownership, PermissionDenied, Throttled
from volplane.cloud import LABELS
from volplane_gce_pd.api import Method
from volplane_gce_pd.roles import custom_role
from volplane_gce_pd.testing import Behaviour
from volplane_gce_pd.testing.methods import METHODS, permissions_for

GIB = 1 << 30
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "gce-pd-roles.json"
ALL = frozenset(custom_role()["includedPermissions"])
POOL = "projects/test-project/zones/europe-test1-a/storagePools/pool-1"
ZONE = "topology.gke.io/zone"
REGIONAL = {"type": "hyperdisk-balanced-high-availability", "replication-type": "regional-pd"}


def test_the_document_is_what_the_code_says() -> None:
    if not DOCUMENT.parent.is_dir():
        pytest.skip("not in the repository")
    assert json.loads(DOCUMENT.read_text("utf-8")) == custom_role(), (
        "python -m volplane_gce_pd.roles > docs/reference/gce-pd-roles.json"
    )


def test_every_method_of_the_list_is_called_by_some_module() -> None:
    used = set()
    for path in Path(volplane_gce_pd.__file__).parent.glob("*.py"):
        if path.name == "api.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Method":
                used.add(Method[node.attr])
    assert used == set(Method)


def live(site: Any) -> None:
    """Everything that the driver can be asked for."""
    vm = site.vm()
    node = site.node(vm)
    first = site.provision(
        parameters={"type": "hyperdisk-balanced", "storage-pools": POOL, "resource-tags": "test-project/team/storage"},
        context=site.context(fence="1/a/lease"),
    )
    site.probe()
    site.attach(first, node, context={"fence": "2/b/lease"})
    site.expand(first, 20 * GIB)
    site.clock.advance(14_400.0)
    site.modify(first, iops="4000")
    snapshot = site.snapshot(first, parameters={"resource-tags": "test-project/team/storage"})
    site.ready(snapshot.handle)
    site.clock.advance(600.0)
    classed = {"snapshot-type": "images", "resource-tags": "test-project/team/storage"}
    image = site.snapshot(first, "snap-i", parameters=classed)
    site.find_snapshot(image.handle)
    site.listed_snapshots()
    of_image = site.provision("u5", 20 * GIB, source_snapshot=image.handle)
    copy = site.provision("u2", 20 * GIB, source_snapshot=snapshot.handle)
    modes = (AccessMode.READ_ONLY_MANY,)
    parameters = {"type": "hyperdisk-balanced"}
    clone = site.provision("u3", 20 * GIB, source_volume=first.handle, access_modes=modes, parameters=parameters)
    site.attach(clone, node, "u3", volume={"access_modes": modes})
    regional = site.provision("u4", parameters=REGIONAL)
    site.expand(regional, 20 * GIB, owner=site.owner("u4"))
    site.listed()
    site.find("u2")
    former = Ownership(cluster_id="before", claim_uid="u2", volume_name="pvc-u2")
    site.fake.disks["zones/europe-test1-a", "pvc-u2"].labels[LABELS.cluster] = "before"
    request = site.adoption(copy, former)
    with pytest.raises(Throttled):
        site.backend.adopt(type(request)(context=request.context, volume=site.identity(copy, "u2"), former=former))
    site.detach(first, node)
    site.detach(clone, node, "u3")
    site.clock.advance(5.0)
    site.delete_snapshot(snapshot.handle)
    site.delete_snapshot(image.handle, "snap-i")
    for asset, uid in ((first, "u1"), (of_image, "u5"), (copy, "u2"), (clone, "u3"), (regional, "u4")):
        site.delete(asset, uid)


def test_a_whole_life_needs_no_more_than_the_role(new_site: Any) -> None:
    site = new_site(Behaviour(permissions=ALL, storage_pools=frozenset({POOL})))
    needed: set[str] = set()
    admit = site.fake.admit

    def note(action: str, params: Any, caller: str) -> None:
        needed.update(permissions_for(METHODS[action], params.get("body", {})))
        admit(action, params, caller)

    site.fake.admit = note
    live(site)
    assert site.fake.disks == {}
    unused = ALL - needed
    # Lists are for several at once, which one call after another does not need.
    assert {each for each in unused if not each.endswith(".list")} == set()


@pytest.mark.parametrize("missing", ["compute.disks.create", "compute.disks.setLabels", "compute.zoneOperations.get"])
def test_a_missing_permission_is_named(new_site: Any, missing: str) -> None:
    site = new_site(Behaviour(permissions=ALL - {missing}))
    with pytest.raises(PermissionDenied, match=f"Required '{missing}'") as raised:
        site.provision()
    assert "gce-pd-roles.json" in str(raised.value)

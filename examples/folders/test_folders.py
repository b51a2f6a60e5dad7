from pathlib import Path

from volplane_folders import FolderBackend

from volplane import ClaimIdentity, Context, DeleteRequest, Done, Ownership, ProvisionRequest, VolumeIdentity

context = Context(driver="folders.example.com", cluster_id="test")
owner = Ownership(cluster_id="test", claim_uid="5a1e", volume_name="pvc-5a1e")
claim = ClaimIdentity(namespace="default", name="data", uid="5a1e")


def test_a_volume_is_a_folder_until_it_is_deleted(tmp_path: Path) -> None:
    backend = FolderBackend({"root": str(tmp_path)})
    demand = ProvisionRequest(context=context, name="pvc-5a1e", capacity_bytes=1 << 30, owner=owner, claim=claim)
    asset = backend.provision(demand)
    assert backend.provision(demand) == asset
    assert (tmp_path / "pvc-5a1e").is_dir()

    volume = VolumeIdentity(
        name="pvc-5a1e", uid="77", handle=asset.handle, source=asset.source, capacity_bytes=1 << 30, owner=owner
    )
    assert backend.delete(DeleteRequest(context=context, volume=volume)) == Done()
    assert backend.delete(DeleteRequest(context=context, volume=volume)) == Done()
    assert list(tmp_path.iterdir()) == []

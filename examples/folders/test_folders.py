from pathlib import Path

import pytest
from volplane_folders import FoldersBackend

from volplane_testing import BackendConformance, Cluster, FailAfter, FaultyBackend, Subject


class TestFolders(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Subject:
        return Subject(
            FoldersBackend,
            {"root": str(tmp_path)},
            other_parameters={"colour": "red"},
            inspect=lambda: sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")),
            real_crashes=True,
        )


async def test_lost_answers_cost_nothing(tmp_path: Path) -> None:
    folders = FoldersBackend({"root": str(tmp_path)})
    faulty = FaultyBackend(folders, {"provision": [FailAfter()], "delete": [FailAfter()]})

    async with Cluster([faulty]) as cluster:
        await cluster.create_class("folders")
        claim = await cluster.create_claim("data", storage_class="folders", capacity="2Gi")
        volume = await cluster.wait_bound(claim)
        assert [path.name for path in folders.volumes.iterdir()] == [volume["metadata"]["name"]]
        await cluster.delete_claim(claim)
        await cluster.advance(60)
        assert volume not in cluster.api
        assert list(folders.volumes.iterdir()) == []

"""NFS volumes of a server on this machine are directories of it, unless a link is on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.errors import ConfigurationError
from volplane_embedded.kubelet.local_exports import LocalExport, local_directory
from volplane_embedded.kubelet.mounts import MountError


@pytest.fixture
def exports(tmp_path: Path) -> list[LocalExport]:
    (tmp_path / "data" / "team" / "volume").mkdir(parents=True)
    return [LocalExport.parse(f"127.0.0.1:/vol={tmp_path}/data")]


def test_a_volume_of_the_export_is_its_directory(exports: list[LocalExport], tmp_path: Path) -> None:
    assert local_directory(exports, "127.0.0.1", "/vol/team//volume/") == tmp_path / "data" / "team" / "volume"
    assert local_directory(exports, "127.0.0.1", "/vol") == tmp_path / "data"


@pytest.mark.parametrize(
    ("server", "path"), [("192.0.2.1", "/vol/team"), ("127.0.0.1", "/volume/team"), ("127.0.0.1", "/vol/../etc")]
)
def test_other_servers_and_paths_are_not_of_this_machine(exports: list[LocalExport], server: str, path: str) -> None:
    assert local_directory(exports, server, path) is None


def test_no_link_is_followed_to_a_volume(exports: list[LocalExport], tmp_path: Path) -> None:
    (tmp_path / "data" / "link").symlink_to("/etc")
    for path in ("/vol/link", "/vol/link/ssl"):
        with pytest.raises(MountError, match="symbolic link"):
            local_directory(exports, "127.0.0.1", path)


def test_a_volume_that_is_gone_is_told(exports: list[LocalExport]) -> None:
    with pytest.raises(MountError, match="no directory"):
        local_directory(exports, "127.0.0.1", "/vol/gone")


@pytest.mark.parametrize("text", ["", "127.0.0.1=/srv", "127.0.0.1:/vol", "127.0.0.1:/vol=relative", ":/vol=/srv"])
def test_an_option_that_cannot_be_read_says_what_would_be_right(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write SERVER:/PATH=DIRECTORY"):
        LocalExport.parse(text)

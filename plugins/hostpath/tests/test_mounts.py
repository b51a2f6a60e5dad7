"""Reading what is mounted where."""

from __future__ import annotations

import os
from pathlib import Path

from volplane.directory.dirfd import MountIdentity, mount_id
from volplane_hostpath.mounts import (
    Mount,
    mounts_below,
    mounts_of,
    parse_mountinfo,
    read_mounts,
)

LINES = """\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
42 27 0:39 / /mnt/with\\040space rw,relatime - tmpfs none rw,size=1024k
43 27 254:0 /srv/a\\134b /mnt/bind rw - ext4 /dev/vda rw
torn line
"""


def test_mountinfo_is_read_with_its_escapes() -> None:
    assert parse_mountinfo(LINES) == [
        Mount(27, "254:0", "/", "/"),
        Mount(42, "0:39", "/", "/mnt/with space"),
        Mount(43, "254:0", "/srv/a\\b", "/mnt/bind"),
    ]


def test_mounts_are_found_below_a_directory_and_of_it(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "below").mkdir(parents=True)
    fd = os.open(volume, os.O_RDONLY)
    try:
        own = next(mount for mount in read_mounts() if mount.number == mount_id(fd))
        inside = own.root.rstrip("/") + str(volume)[len(own.point.rstrip("/")) :]

        def mount(root: str, point: str, device: str = own.device) -> Mount:
            return Mount(10**6, device, root, point)

        assert mounts_below(fd, [own, mount("/", f"{volume}-twin"), mount("/", str(tmp_path))]) == []
        assert mounts_below(fd, [own, mount("/", f"{volume}/below")]) == [f"{volume}/below"]
        assert mounts_of(fd, [own, mount(f"{inside}/below", "/pod")]) == ["/pod"]
        assert mounts_of(fd, [own, mount(inside, "/pod")]) == ["/pod"]
        assert mounts_of(fd, [own, mount(f"{inside}-twin", "/pod"), mount(inside, "/pod", "9:9")]) == []
        assert mounts_of(fd, []) == []
        assert MountIdentity.of(fd) == MountIdentity(os.fstat(fd).st_dev, own.number)
    finally:
        os.close(fd)

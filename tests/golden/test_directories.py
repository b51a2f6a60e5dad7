"""What earlier releases have written beside volumes that are directories is read, and written again byte for byte."""

import json
from pathlib import Path

import pytest

from volplane.directory import archived_volume, decode_fields, expires_at
from volplane_hostpath.markers import RootMarker
from volplane_hostpath.markers import VolumeMarker as HostPathMarker
from volplane_nfs.markers import VolumeMarker as NfsMarker

GOLDEN = json.loads((Path(__file__).parent / "directories.json").read_text("utf-8"))["markers"]
KINDS = {"nfs": NfsMarker, "hostpath": HostPathMarker, "root": RootMarker}


@pytest.mark.parametrize("row", [row for row in GOLDEN if row["kind"] in KINDS], ids=lambda row: row["what"])
def test_a_marker_is_written_again_as_it_was_read(row: dict[str, str]) -> None:
    assert KINDS[row["kind"]].decode(row["text"].encode()).encode() == row["text"].encode()


@pytest.mark.parametrize("row", [row for row in GOLDEN if row["kind"] == "archive"], ids=lambda row: row["what"])
def test_the_time_of_an_archive_is_read(row: dict[str, str]) -> None:
    fields = decode_fields(row["text"].encode())
    assert expires_at(fields) == (None if "kept" in row["what"] else 1700000060.5)
    assert archived_volume(NfsMarker, fields) is None, "it does not hold one"

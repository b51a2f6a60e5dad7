"""What is told of how far a copy is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from volplane.directory import CopyCounts, TreeCopy, copy_progress, human

FIRST, SECOND = {"pass": 1}, {"pass": 2}


@pytest.mark.parametrize(
    ("where", "counts", "whole", "text"),
    [
        (FIRST, CopyCounts(12_345, 1 << 30), None, "12,345 entries with 1 GiB are copied"),
        (
            FIRST,
            CopyCounts(12_345, 1 << 30),
            CopyCounts(40_000, 5 << 30),
            "12,345 of 40,000 entries with 1 GiB of 5 GiB are copied",
        ),
        (FIRST, CopyCounts(12, 1 << 30), CopyCounts(bytes=5 << 30), "12 entries with 1 GiB of 5 GiB are copied"),
        (FIRST, CopyCounts(12, 6 << 30), CopyCounts(10, 5 << 30), "12 of 12 entries with 6 GiB of 6 GiB are copied"),
        (SECOND, CopyCounts(12, 1536), CopyCounts(40, 2048), "12 of 40 entries with 1.5 KiB of 2 KiB are compared"),
    ],
)
def test_it_is_told_of_how_much_where_that_is_known(
    where: dict[str, Any], counts: CopyCounts, whole: CopyCounts | None, text: str
) -> None:
    hint = {"since": 1, **where, "counts": {"entries": counts.entries, "bytes": counts.bytes}}
    assert copy_progress(TreeCopy(cast("Any", None), since=1, hint=hint), whole) == text


def test_the_file_in_hand_counts() -> None:
    copy = TreeCopy[Any](cast("Any", None), since=1, hint={"since": 1, "file": [7, 3 << 20, 1]})
    assert copy_progress(copy) == "0 entries with 3 MiB are copied"


def test_sizes_are_told_in_the_largest_unit() -> None:
    assert [human(size) for size in (0, 1023, 1536, 3 << 40)] == ["0 B", "1023 B", "1.5 KiB", "3 TiB"]

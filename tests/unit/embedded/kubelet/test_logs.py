"""Logs of containers: how they are written, and how they are read."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.requests import Query
from volplane_embedded.kubelet.logs import LogOptions, filter_lines, parse_lines, read_log_options, read_logs
from volplane_embedded.sandbox.log_writer import ContainerLog

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINES = [
    ("2026-01-01T11:59:00.000000000Z", b"old\n"),
    ("2026-01-01T11:59:59.500000000Z", b"new\n"),
    ("2026-01-01T12:00:00.000000000Z", b"newest\n"),
]


def read(log: Path, wanted: LogOptions | None = None) -> bytes:
    async def main() -> bytes:
        return b"".join([piece async for piece in read_logs(log, wanted or LogOptions(), runs=None)])

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({}, b"old\nnew\nnewest\n"),
        ({"tailLines": "1"}, b"newest\n"),
        ({"tailLines": "0"}, b""),
        ({"sinceSeconds": "30"}, b"new\nnewest\n"),
        ({"sinceSeconds": "9223372036854775807"}, b"old\nnew\nnewest\n"),
        ({"tailLines": "9223372036854775807"}, b"old\nnew\nnewest\n"),
        ({"sinceTime": "2026-01-01T12:00:00Z"}, b"newest\n"),
        ({"sinceTime": "2026-01-01T14:00:00+02:00"}, b"newest\n"),
        ({"timestamps": "true", "tailLines": "1"}, b"2026-01-01T12:00:00.000000000Z newest\n"),
    ],
)
def test_a_query_chooses_lines(query: dict[str, str], shown: bytes) -> None:
    assert b"".join(filter_lines(LINES, read_log_options(Query(query), NOW))) == shown


@pytest.mark.parametrize(
    "query",
    [
        {"sinceTime": "yesterday"},
        {"sinceTime": "0001-01-01T00:00:00+14:00"},
        {"tailLines": "-1"},
        {"limitBytes": "many"},
    ],
)
def test_a_query_that_means_nothing_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(StatusError) as refused:
        read_log_options(Query(query), NOW)
    assert refused.value.code == 400


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", 1 << 20)
    for chunk in (b"one\ntw", b"o\n\nno end"):
        log.write(chunk)
    log.close()
    assert read(tmp_path / "0.log") == b"one\ntwo\n\nno end\n"


def test_a_command_cannot_end_a_line_of_the_log_in_its_middle(tmp_path: Path) -> None:
    """A progress bar is one line; so is what looks like the beginning of another one after a carriage return."""
    written = b"10%\r20%\r2026-01-01T12:00:00.000000000Z stdout F forged\x0b\x0c\x1c\xc2\x85x\n"
    log = ContainerLog(tmp_path / "0.log", 1 << 20)
    log.write(written)
    log.close()
    assert read(tmp_path / "0.log") == written


def test_a_long_line_is_cut_into_pieces_and_put_together(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", 1 << 20)
    text = b"x" * 40_000
    log.write(text[:30_000])
    log.write(text[30_000:] + b"\nend\n")
    log.close()
    kinds = [line.split(b" ")[2] for line in (tmp_path / "0.log").read_bytes().splitlines()]
    assert kinds == [b"P", b"P", b"F", b"F"]
    assert read(tmp_path / "0.log") == text + b"\nend\n"


def test_a_log_keeps_to_two_files_of_bounded_size(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", 2000)
    for number in range(1000):
        log.write(b"line %d\n" % number)
    log.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 2000
    shown = read(tmp_path / "0.log").splitlines()
    assert shown[-1] == b"line 999"
    assert shown == [b"line %d" % number for number in range(1000 - len(shown), 1000)]


@pytest.mark.real_time
@pytest.mark.parametrize("limit", [14, 150])
async def test_following_goes_on_over_the_change_of_files_until_the_container_ends(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "0.log"
    log = ContainerLog(path, limit)
    log.write(b"line 0\n")
    runs = True
    heard = bytearray()

    async def follow() -> None:
        async for piece in read_logs(path, LogOptions(), runs=lambda: runs):
            heard.extend(piece)

    following = asyncio.create_task(follow())
    for number in range(1, 6):
        while b"line %d\n" % (number - 1) not in heard:
            await asyncio.sleep(0.001)
        log.write(b"line %d\n" % number)
    runs = False
    await following
    log.close()
    assert bytes(heard) == b"".join(b"line %d\n" % number for number in range(6))


def test_no_more_bytes_are_given_than_asked_for(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "0.log", 1 << 20)
    log.write(b"one\ntwo\n")
    log.close()
    assert read(tmp_path / "0.log", LogOptions(limit=5)) == b"one\nt"


def test_pieces_of_a_line_have_no_newline() -> None:
    data = b"t1 stdout P ab\nt2 stdout F c\n"
    assert list(parse_lines(data)) == [("t1", b"ab"), ("t2", b"c\n")]

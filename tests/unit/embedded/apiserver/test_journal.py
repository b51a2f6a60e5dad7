from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unit.embedded.apiserver.calls import MAPS, VOLUMES, Calls, config_map, rest, volume
from volplane_embedded.apiserver.journal import DataDirInUse, SqliteJournal
from volplane_embedded.apiserver.requests import Answer
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Store

_JSON = {"content-type": "application/json"}


def opened(directory: Path) -> Calls:
    return Calls(store=Store(SqliteJournal(directory)))


def test_objects_uids_and_versions_survive_a_restart(tmp_path: Path) -> None:
    before = opened(tmp_path)
    before.made(MAPS, config_map("a", k="v"))
    before.patch(f"{MAPS}/a", {"data": {"k": "w"}})
    before.made(MAPS, config_map("b"))
    before.delete(f"{MAPS}/b")
    before.made(VOLUMES, volume("v"))
    listed = {path: before.get(path).body for path in (MAPS, VOLUMES, "/api/v1/namespaces")}
    before.server.close()
    after = opened(tmp_path)
    assert {path: after.get(path).body for path in listed} == listed
    assert int(after.made(MAPS, config_map("c")).version) == int(listed[MAPS]["metadata"]["resourceVersion"]) + 1
    after.server.close()


def test_the_version_of_a_deletion_is_never_given_again(tmp_path: Path) -> None:
    before = opened(tmp_path)
    before.made(MAPS, config_map("a"))
    before.delete(f"{MAPS}/a")
    version = before.server.store.version
    before.server.close()
    after = opened(tmp_path)
    assert after.server.store.version == version
    after.server.close()


@pytest.mark.real_time
async def test_a_watch_from_before_a_restart_has_to_list_again_and_one_from_the_end_goes_on(tmp_path: Path) -> None:
    before = opened(tmp_path)
    old = before.made(MAPS, config_map("a")).version
    before.made(MAPS, config_map("b"))
    token = before.get(MAPS, limit="1").body["metadata"]["continue"]
    before.delete(f"{MAPS}/b")
    newest = str(before.server.store.version)
    before.server.close()

    after = opened(tmp_path)
    (event,) = await rest(after.watch(MAPS, resourceVersion=old))
    assert event["object"]["code"] == 410
    watch = after.watch(MAPS, resourceVersion=newest)
    after.made(MAPS, config_map("c"))
    assert b'"name":"c"' in await anext(watch)
    assert after.get(MAPS, **{"continue": token}).status == 410
    after.server.close()


def test_a_data_directory_is_served_by_one_process_at_a_time(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path)
    with pytest.raises(DataDirInUse, match=rf"is in use by another .* \(process {os.getpid()}\)"):
        SqliteJournal(tmp_path)
    first.close()
    first.close()
    SqliteJournal(tmp_path).close()


def test_a_new_data_directory_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    SqliteJournal(directory).close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}


def test_a_directory_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        SqliteJournal(tmp_path / "file")
    (tmp_path / "store.db").write_text("this is no database, but long enough to look at" * 100)
    with pytest.raises(DataDirInUse, match="not a database"):
        SqliteJournal(tmp_path)


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    SqliteJournal(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("UPDATE counters SET value = 99 WHERE name = 'format'")
    connection.commit()
    connection.close()
    with pytest.raises(DataDirInUse, match="its format is 99"):
        SqliteJournal(tmp_path)


def test_a_write_that_the_disk_refuses_is_a_500_and_did_not_happen(tmp_path: Path) -> None:
    calls = opened(tmp_path)
    calls.made(MAPS, config_map("a", k="1"))
    version = calls.server.store.version
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute("DROP TABLE counters")
    other.commit()
    other.close()
    for reply in (
        calls.patch(f"{MAPS}/a", {"data": {"k": "2"}}),
        calls.delete(f"{MAPS}/a"),
        calls.create(MAPS, config_map("b")),
    ):
        assert (reply.status, reply.reason) == (500, "InternalError")
    assert calls.get(f"{MAPS}/a").body["data"] == {"k": "1"}
    assert calls.server.store.version == version
    calls.server.close()


async def _created(server: ApiServer, name: str) -> Answer:
    return await server.answer("POST", MAPS, (), _JSON, json.dumps(config_map(name)).encode())


def _on_disk(directory: Path) -> set[str]:
    """Names of the config maps that a process which starts now would find."""
    with closing(sqlite3.connect(directory / "store.db")) as other:
        rows = other.execute("SELECT key FROM objects WHERE storage = 'configmaps'")
        return {key.rpartition("/")[2] for (key,) in rows}


@pytest.mark.real_time
async def test_writes_that_arrive_together_share_one_wait_for_the_disk(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    server = Calls(store=Store(journal)).server
    statements: list[str] = []
    journal._connection.set_trace_callback(statements.append)
    answers = await asyncio.gather(*(_created(server, f"m-{number}") for number in range(100)))
    assert {answer.status for answer in answers} == {201}
    assert len(_on_disk(tmp_path)) == 100
    server.close()
    assert statements.count("COMMIT") == 1


@pytest.mark.real_time
async def test_a_write_of_the_server_itself_waits_for_nobody_to_be_on_disk(tmp_path: Path) -> None:
    server = Calls(store=Store(SqliteJournal(tmp_path))).server
    server.store.put("configmaps", "default/own", config_map("own"))
    assert _on_disk(tmp_path) == set()
    await asyncio.sleep(0.01)
    assert _on_disk(tmp_path) == {"own"}
    server.close()


@pytest.mark.real_time
async def test_a_caller_that_goes_away_costs_the_others_nothing(tmp_path: Path) -> None:
    server = Calls(store=Store(SqliteJournal(tmp_path))).server
    impatient, patient = (asyncio.create_task(_created(server, name)) for name in ("a", "b"))
    asyncio.get_running_loop().call_soon(impatient.cancel)
    assert (await patient).status == 201
    assert _on_disk(tmp_path) == {"a", "b"}
    server.close()


@pytest.mark.real_time
async def test_what_the_disk_refuses_is_neither_acknowledged_nor_shown_until_it_is_written(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    server = Calls(store=Store(journal)).server
    journal._connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    journal._connection.execute("CREATE TABLE full (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)")
    journal._connection.execute("PRAGMA foreign_keys = ON")
    journal._connection.execute("CREATE TRIGGER refuse AFTER INSERT ON objects BEGIN INSERT INTO full VALUES (1); END")
    refused = await asyncio.gather(_created(server, "a"), _created(server, "b"))
    assert {answer.status for answer in refused} == {500}
    assert b"the store cannot be written" in refused[0].body
    assert (await server.answer("GET", MAPS, (), {}, b"")).status == 500
    assert (await _created(server, "c")).status == 500
    assert _on_disk(tmp_path) == set()
    journal._connection.execute("DROP TRIGGER refuse")
    assert (await _created(server, "d")).status == 201
    listed = json.loads((await server.answer("GET", MAPS, (), {}, b"")).body)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b", "d"]
    assert _on_disk(tmp_path) == {"a", "b", "d"}
    server.close()

"""How many connections are made for requests that wait."""

import asyncio
from collections.abc import Callable

import pytest

from volplane.kube.http.connection import Connection, ConnectionPool, Tls


class Wire(asyncio.Transport):
    """The network below a connection that nobody closes."""

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


class Server:
    """Lets everybody connect at once. made: how many did."""

    def __init__(self) -> None:
        self.made = 0

    async def connect(self, _tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        self.made += 1
        connection = Connection(asyncio.get_running_loop(), lost)
        connection.connection_made(Wire())
        return connection


async def test_while_a_server_answers_nothing_a_few_connections_are_added_at_a_time() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    waiting = [asyncio.create_task(pool.take(True)) for _ in range(100)]
    made = []
    for seconds in (0.05, 0.1, 0.1, 0.1):
        await asyncio.sleep(seconds)
        made.append(server.made)
    assert made == [8, 16, 24, 32]
    await asyncio.sleep(2.0)
    assert server.made == 100
    assert all(task.done() for task in waiting)


async def test_who_waits_for_a_connection_waits_no_longer_than_the_request_may_take() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    lent = [await pool.take(True) for _ in range(8)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        await pool.take(True, began + 0.05)
    assert loop.time() - began == pytest.approx(0.05)
    pool.give_back(lent[0])
    assert await pool.take(True) is lent[0]

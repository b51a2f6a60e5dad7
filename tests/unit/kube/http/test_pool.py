"""How many connections are made for requests that wait."""

import asyncio
from collections.abc import Callable

import pytest

from volplane.kube.http.connection import Connection, ConnectionPool, Tls

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Wire(asyncio.Transport):
    """The network below a connection, to which nothing is written."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._closed = False

    def is_closing(self) -> bool:
        return self._closed

    def write(self, _data: object) -> None:
        pass

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Server:
    """Lets the first so many connect at once, and refuses the others. made, refused: how many."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.made = self.refused = 0
        self._most = most

    async def connect(self, _tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        if self.made >= self._most:
            self.refused += 1
            raise ConnectionRefusedError
        self.made += 1
        connection = Connection(asyncio.get_running_loop(), lost)
        connection.connection_made(Wire(connection))
        return connection


async def used(pool: ConnectionPool, seconds: float = 0.3) -> Connection:
    """Have one answer of a connection of the pool."""
    connection = await pool.take(True)
    answer = connection.send(b"GET")
    await asyncio.sleep(seconds)
    connection.data_received(OK)
    assert await answer.body() == b"{}"
    pool.give_back(connection)
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


async def test_a_connection_that_is_refused_fails_nobody_while_others_are_open() -> None:
    """As where a load balancer lets through so many and no more."""
    server = Server(most=7)
    pool = ConnectionPool(server.connect)
    await asyncio.gather(*(used(pool) for _ in range(60)))
    assert server.made == 7
    assert server.refused <= 8, "about once a second"


async def test_who_waits_is_failed_at_once_where_no_connection_is_open() -> None:
    pool = ConnectionPool(Server(most=0).connect)
    waiting = [asyncio.create_task(pool.take(True)) for _ in range(60)]
    await asyncio.sleep(0.01)
    assert all(isinstance(task.exception(), ConnectionRefusedError) for task in waiting)


async def test_more_is_opened_once_that_is_possible_again() -> None:
    server = Server(most=1)
    pool = ConnectionPool(server.connect)
    lent = await pool.take(True)
    waiting = asyncio.create_task(pool.take(True))
    await asyncio.sleep(1.5)
    server._most = 2
    assert await waiting is not lent


async def test_nobody_waits_for_what_is_lent_for_long() -> None:
    server = Server()
    pool = ConnectionPool(server.connect, lent_for_long=True)
    lent = [asyncio.create_task(pool.take(True)) for _ in range(30)]
    await asyncio.sleep(0.01)
    assert all(task.done() for task in lent)
    server._most = server.made
    with pytest.raises(ConnectionRefusedError):
        await pool.take(True)


async def test_a_request_that_a_kept_connection_swallows_ends_its_idle_siblings() -> None:
    """As after a failover of an address or a router that forgets its connections without a word."""
    server = Server()
    pool = ConnectionPool(server.connect)
    pool.swallowed = pool.drop_idle
    await asyncio.gather(*(used(pool) for _ in range(8)))
    await asyncio.sleep(5.0)
    swallowing, proven = await pool.take(True), await used(pool, 0.0)
    swallowing.send(b"GET")
    pool.give_back(swallowing)
    await asyncio.sleep(0.01)
    assert pool._idle == [proven]
    assert await pool.take(True) is proven
    await pool.take(True)
    assert server.made == 9


async def test_a_new_connection_without_an_answer_says_nothing_of_others() -> None:
    pool = ConnectionPool(Server().connect)
    pool.swallowed = pool.drop_idle
    idle, new = await asyncio.gather(pool.take(True), pool.take(True))
    pool.give_back(idle)
    await asyncio.sleep(5.0)
    new.send(b"GET")
    pool.give_back(new)
    assert await pool.take(True) is idle

"""How many connections are made for requests that wait."""

import asyncio
from collections.abc import Callable

import pytest

from volplane.kube.http.connection import BrokenOff, Connection, ConnectionPool, Tls

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Wire(asyncio.Transport):
    """The network below a connection, to which nothing is written."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._closed = False
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

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
        self.wires: list[Wire] = []
        self._most = most

    async def connect(self, _tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        if self.made >= self._most:
            self.refused += 1
            raise ConnectionRefusedError
        self.made += 1
        connection = Connection(asyncio.get_running_loop(), lost)
        self.wires.append(Wire(connection))
        connection.connection_made(self.wires[-1])
        return connection

    @property
    def open(self) -> int:
        return sum(not wire.is_closing() for wire in self.wires)


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


async def test_a_connection_that_the_server_closed_while_it_was_idle_is_not_lent() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    kept = await used(pool)
    server.wires[0].abort()
    await asyncio.sleep(0.01)
    assert await pool.take(True) is not kept
    assert (server.made, server.open) == (2, 1)
    assert not kept.usable
    with pytest.raises(BrokenOff, match="the connection is closed"):
        kept.send(b"GET")


async def test_what_is_dropped_because_it_was_idle_is_not_lent() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    await used(pool)
    await asyncio.sleep(5.0)
    pool.drop_idle()
    assert (await pool.take(True)).usable
    assert (server.made, server.open) == (2, 1)


async def test_what_lay_idle_for_long_is_closed() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    await used(pool)
    await asyncio.sleep(61.0)
    await pool.take(True)
    assert (server.made, server.open) == (2, 1)


async def test_connections_of_a_former_certificate_are_closed() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    lent, _ = await pool.take(True), await used(pool)
    await pool.take(None)
    assert server.open == 2, "what was idle is closed at once"
    pool.give_back(lent)
    assert server.open == 1


async def test_what_comes_for_one_who_just_gave_up_serves_the_next() -> None:
    server = Server(most=1)
    pool = ConnectionPool(server.connect)
    lent = await pool.take(True)
    waiting = asyncio.ensure_future(pool.take(True))
    await asyncio.sleep(0.01)
    pool.give_back(lent)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await pool.take(True) is lent


async def test_a_pool_that_is_closed_opens_nothing_more() -> None:
    server = Server()
    pool = ConnectionPool(server.connect)
    await used(pool)
    await pool.close()
    assert server.open == 0
    with pytest.raises(TimeoutError):
        await pool.take(True, asyncio.get_running_loop().time() + 30.0)
    assert server.made == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_only_a_stream_waits_until_somebody_reads_it(*, streamed: bool) -> None:
    server, size = Server(), 3 << 20
    connection = await server.connect(True, lambda _connection: None)
    answer = connection.send(b"GET", streamed=streamed)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
    connection.data_received(b"x" * (size - 1))
    assert server.wires[0].paused is streamed
    if streamed:
        assert len(await answer.chunk()) == size - 1
        assert not server.wires[0].paused
    connection.data_received(b"x")
    assert len(await answer.body()) == (1 if streamed else size)
    assert connection.usable


async def test_what_nobody_asked_for_closes_the_connection() -> None:
    server, lost = Server(), []
    connection = await server.connect(True, lost.append)
    connection.data_received(OK)
    await asyncio.sleep(0.01)
    assert lost == [connection]
    assert not connection.usable


async def test_who_waits_is_told_that_the_pool_was_closed() -> None:
    pool = ConnectionPool(Server(most=0).connect)
    pool._not_before = asyncio.get_running_loop().time() + 60.0
    waiting = asyncio.ensure_future(pool.take(True))
    await asyncio.sleep(0.01)
    await pool.close()
    with pytest.raises(BrokenOff, match="the transport is closed"):
        await waiting

"""When credentials are read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from volplane.errors import ConfigurationError
from volplane.kube.credentials import Credentials, Identity
from volplane.kube.transport import Response

OK, UNAUTHORIZED = Response(200, {}, b"{}"), Response(401, {}, b"{}")
MINUTE, HOUR = 60.0, 3600.0


class Wallet:
    """A source whose identity the test changes. pause: seconds that a look takes."""

    def __init__(self) -> None:
        self.identity = Identity(authorization="Bearer 1", mark=1)
        self.looks: list[bool] = []
        self.error = ""
        self.pause = 0.0
        self.lifetime: float | None = None
        """Seconds; then a refused look gives the next identity."""

    def rotate(self, expires_in: float | None = None) -> None:
        number = int(str(self.identity.mark)) + 1
        self.identity = Identity(authorization=f"Bearer {number}", mark=number, expires_in=expires_in)

    async def read(self, *, refused: bool) -> Identity:
        self.looks.append(refused)
        await asyncio.sleep(self.pause)
        if self.error:
            raise ConfigurationError(self.error)
        if refused and self.lifetime is not None:
            self.rotate(self.lifetime)
        return self.identity


class Server:
    """Accepts one identity."""

    def __init__(self, accepts: int) -> None:
        self.accepts = accepts
        self.asked: list[object] = []

    async def exchange(self, identity: Identity) -> Response:
        self.asked.append(identity.mark)
        await asyncio.sleep(0.01)
        return OK if identity.mark == self.accepts else UNAUTHORIZED


@asynccontextmanager
async def kept(wallet: Wallet) -> AsyncIterator[Credentials]:
    credentials = Credentials(wallet, wallet.identity)
    task = asyncio.create_task(credentials.keep())
    try:
        yield credentials
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_files_are_looked_at_every_minute_and_what_changed_is_used() -> None:
    wallet = Wallet()
    async with kept(wallet) as credentials:
        await asyncio.sleep(10 * MINUTE + 1)
        assert wallet.looks == [False] * 10
        wallet.rotate()
        await asyncio.sleep(MINUTE)
        assert credentials.identity.authorization == "Bearer 2"


async def test_what_expires_is_asked_for_again_before_it_does() -> None:
    wallet = Wallet()
    wallet.lifetime = 15 * MINUTE
    wallet.rotate(wallet.lifetime)
    async with kept(wallet) as credentials:
        for _ in range(4):
            await asyncio.sleep(14.9 * MINUTE)
            assert credentials.identity.mark != 2
        assert wallet.looks.count(True) in (4, 5)


async def test_what_has_always_expired_already_is_not_asked_for_all_the_time() -> None:
    wallet = Wallet()
    wallet.rotate(expires_in=-5.0)
    async with kept(wallet):
        await asyncio.sleep(HOUR)
        assert len(wallet.looks) <= 360


async def test_a_refused_call_is_made_again_with_what_has_changed() -> None:
    wallet, server = Wallet(), Server(accepts=2)
    async with kept(wallet) as credentials:
        wallet.rotate()
        assert await credentials.authorized(server.exchange, seconds=5) is OK
        assert server.asked == [1, 2]
        assert wallet.looks == [True]


async def test_a_call_that_stays_refused_is_answered_so_and_looks_are_few() -> None:
    wallet, server = Wallet(), Server(accepts=7)
    async with kept(wallet) as credentials:
        for _ in range(100):
            assert await credentials.authorized(server.exchange, seconds=5) is UNAUTHORIZED
            await asyncio.sleep(0.5)
        assert 3 <= wallet.looks.count(True) <= 6


async def test_many_refused_calls_share_one_look() -> None:
    wallet, server = Wallet(), Server(accepts=2)
    wallet.pause = 2.0
    async with kept(wallet) as credentials:
        wallet.rotate()
        calls = [credentials.authorized(server.exchange, seconds=5) for _ in range(50)]
        assert await asyncio.gather(*calls) == [OK] * 50
        assert wallet.looks == [True]


async def test_a_call_does_not_wait_longer_than_it_may_and_the_look_goes_on() -> None:
    wallet, server = Wallet(), Server(accepts=2)
    wallet.pause = 30.0
    async with kept(wallet) as credentials:
        wallet.rotate()
        begun = asyncio.get_running_loop().time()
        assert await credentials.authorized(server.exchange, seconds=5) is UNAUTHORIZED
        assert asyncio.get_running_loop().time() - begun < 5.1
        await asyncio.sleep(26)
        assert await credentials.authorized(server.exchange, seconds=5) is OK


async def test_the_old_ones_are_used_while_new_ones_cannot_be_read_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wallet = Wallet()
    async with kept(wallet) as credentials:
        wallet.error = "token: permission denied; make it readable"
        await asyncio.sleep(HOUR)
        assert credentials.identity.authorization == "Bearer 1"
        (warning,) = caplog.messages
        assert "make it readable" in warning
        wallet.error = ""
        wallet.rotate()
        await asyncio.sleep(MINUTE)
        assert credentials.identity.authorization == "Bearer 2"

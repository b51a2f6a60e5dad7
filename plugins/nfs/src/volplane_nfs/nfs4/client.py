"""A client of one server: a small pool of channels, calls with a time limit, and a rest for a server that is down."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from volplane_nfs.nfs4.connection import Address, Dial, Failover, dial_tcp
from volplane_nfs.nfs4.errors import NfsError, NoAnswer, OutcomeUnknown, ServerUnavailable, TransportError
from volplane_nfs.nfs4.operations import Reply, Request
from volplane_nfs.nfs4.rpc import Credentials
from volplane_nfs.nfs4.session import Channel
from volplane_nfs.nfs4.slots import MINIMUM_DATA
from volplane_nfs.nfs4.status import Status

_REST_FIRST: Final = 1.0
_REST_LONGEST: Final = 15.0
_SILENCE: Final = 1.0
"""Seconds without any answer after which no more calls are given to a server: they would only hold threads."""
_PATIENCE: Final = 0.6
"""Part of the time of a call after which another address is turned to, while one was not tried."""
_DELAY_FIRST: Final = 0.005
_DELAY_TOTAL: Final = 0.8
"""Seconds that NFS4ERR_DELAY is waited for in the caller's thread; after that the caller gets it."""


class Compounds(Protocol):
    """What users of a server need: the own client is one, others can be put in its place."""

    @property
    def operations(self) -> int:
        """Return how many operations one COMPOUND may have."""

    @property
    def data_bytes(self) -> int:
        """Return how many bytes of files one COMPOUND may carry, in its call or in its answer."""

    @property
    def minor(self) -> int | None:
        """Return the minor version in use; None before the first call."""

    @property
    def moves(self) -> int:
        """Return how often another address of the server was turned to: file handles may mean nothing there."""

    def compound(self, *requests: Request) -> list[Any]:
        """Do these operations; the values of their results. Raises NfsError, TransportError."""

    def pipeline(self, compounds: Sequence[Sequence[Request]]) -> list[Reply]:
        """Do several COMPOUNDs in any order; their answers, failed ones too. Raises TransportError."""

    def close(self) -> None:
        """End what is open to the server. A later call opens it again."""


def values_of(reply: Reply) -> list[Any]:
    """Return the values of a successful answer; raises NfsError otherwise."""
    if reply.status:
        last = len(reply.results) - 1
        operation = reply.results[last].operation.name if reply.results else "COMPOUND"
        raise NfsError(reply.status, operation, max(0, last))
    return [result.value for result in reply.results]


def done(reply: Reply) -> int:
    """Return how many operations were done."""
    return len(reply.results) - (1 if reply.status and reply.results else 0)


class Client:
    """Calls one server. Threads may share it; after fork(2) the child connects again.

    timeout: seconds of a call, from sending to its answer. connections: at most so many; another one is opened when
    each has a call under way. now: the clock of the rest that a dead server is given. others: addresses at which the
    same server, or another one with the same files, answers when `address` does not.
    """

    def __init__(
        self,
        address: Address,
        *,
        credentials: Credentials = Credentials(),  # noqa: B008 - frozen
        timeout: float = 10.0,
        connections: int = 8,
        dial: Dial = dial_tcp,
        now: Callable[[], float] = time.monotonic,
        others: Sequence[Address] = (),
    ) -> None:
        self.address = address
        self._credentials = credentials.encode()
        self._timeout = timeout
        self._connections = connections
        self._failover = Failover((address, *others), dial) if others else None
        self._dial = self._failover or dial
        self._turns = len(others)
        self._turned = 0
        """To how many other addresses it has turned since the server answered a call."""
        self._turned_at = 0.0
        self._now = now
        self._nonce = secrets.token_hex(8)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._channels: list[Channel] = []
        self._idle: list[Channel] = []
        """Channels that no thread has. Each call takes one of its own while there are some: then its thread alone
        sends and reads, and waits for no other one.
        """
        self._calls = 0
        self._heard = 0.0
        """When the server answered a call, or got one while it had none, monotonic."""
        self._rest_until = 0.0
        self._rest = 0.0
        self._why = ""

    @property
    def operations(self) -> int:
        return min((channel.operations for channel in self._channels), default=32)

    @property
    def data_bytes(self) -> int:
        return min((channel.data_bytes for channel in self._channels), default=MINIMUM_DATA)

    @property
    def moves(self) -> int:
        return 0 if self._failover is None else self._failover.moves

    @property
    def minor(self) -> int | None:
        return self._channels[0].minor if self._channels else None

    def compound(self, *requests: Request) -> list[Any]:
        """Do these operations; the values of their results. Raises NfsError for the first that fails, TransportError.

        NFS4ERR_DELAY is waited for a little while, unless an operation that changes something was done before it.
        """
        pause, waited = _DELAY_FIRST, 0.0
        while True:
            (reply,) = self.pipeline([requests])
            if reply.status != Status.DELAY or waited >= _DELAY_TOTAL:
                return values_of(reply)
            if any(request.operation.changes for request in requests[: done(reply)]):
                return values_of(reply)
            time.sleep(pause)
            waited += pause
            pause *= 2

    def pipeline(self, compounds: Sequence[Sequence[Request]]) -> list[Reply]:
        """Do several COMPOUNDs at once, in any order; their answers, failed ones too. Raises TransportError."""
        if self._rest_until:
            self._refuse_while_resting()
        now = time.monotonic()
        channel, alone = self._take_channel(now)
        patience = self._timeout if self._turned >= self._turns else self._timeout * _PATIENCE
        try:
            replies = channel.run(compounds, now + patience)
        except (ServerUnavailable, NoAnswer) as error:
            kind = OutcomeUnknown if self._turns_away(error, now) else type(error)
            if kind is not OutcomeUnknown:
                self._let_rest(error, now)
            raise kind(f"NFS server {self.address}: {error}") from error
        except TransportError as error:
            raise type(error)(f"NFS server {self.address}: {error}") from error
        finally:
            self._give_back(channel, alone)
        self._heard = time.monotonic()
        if self._rest or self._turned:
            self._rest, self._rest_until, self._turned = 0.0, 0.0, 0
        return replies

    def close(self) -> None:
        """End all sessions. A later call opens new ones."""
        with self._lock:
            channels, self._channels, self._idle = self._channels, [], []
            mine = self._pid == os.getpid()
        if mine:
            for channel in channels:
                channel.close()

    def _take_channel(self, now: float) -> tuple[Channel, bool]:
        """Return a channel for one call, and whether no other call has it. Raises ServerUnavailable."""
        with self._lock:
            if self._pid != os.getpid():
                # The connections belong to the parent process.
                self._channels, self._idle, self._calls, self._pid = [], [], 0, os.getpid()
                self._connecting = threading.Lock()
            if not self._calls:
                self._heard = now
            elif now - self._heard > _SILENCE:
                self._refuse_if_silent(now)
            self._calls += 1
            if self._idle:
                return self._idle.pop(), True
            if len(self._channels) >= self._connections:
                return min(self._channels, key=lambda channel: channel.load), False
            owner = f"volplane {socket.gethostname()} {self._pid} {self._nonce} {len(self._channels)}"
            channel = Channel(
                self.address,
                self._credentials,
                owner.encode(),
                dial=self._dial,
                timeout=self._timeout,
                connecting=self._connecting,
                moves=lambda: self.moves,
            )
            self._channels.append(channel)
            return channel, True

    def _give_back(self, channel: Channel, alone: bool) -> None:
        with self._lock:
            self._calls = max(0, self._calls - 1)
            if alone and channel in self._channels:
                self._idle.append(channel)

    # --- a server that is down ----------------------------------------------------------------------------------

    def _refuse_while_resting(self) -> None:
        left = self._rest_until - self._now()
        if left > 0:
            raise ServerUnavailable(f"NFS server {self.address}: {self._why}; it is tried again in {left:.0f} s")

    def _refuse_if_silent(self, now: float) -> None:
        # Calls of several COMPOUNDs may be answered in part.
        self._heard = max([self._heard, *(channel.last_heard for channel in self._channels)])
        if now - self._heard > _SILENCE:
            raise ServerUnavailable(f"NFS server {self.address}: it does not answer other calls")

    def _answered(self, since: float) -> bool:
        return any(channel.answered > since for channel in self._channels)

    def _turns_away(self, error: TransportError, since: float) -> bool:
        """Turn to another address of a server that is silent; False = there is none to try.

        since: when the call began, monotonic.
        """
        silent = isinstance(error, NoAnswer) or isinstance(error.__cause__, NoAnswer)
        if self._failover is None or not silent:
            return False
        with self._lock:
            if self._turned_at > since:
                return True  # Another call, which began earlier, has turned to it.
            now = time.monotonic()
            if self._turned >= self._turns or self._answered(max(since, now - _SILENCE)):
                return False
            self._turned, self._turned_at, self._heard = self._turned + 1, now, now
            self._failover.turn()
            channels = list(self._channels)
        for channel in channels:
            channel.cut()
        return True

    def _let_rest(self, error: TransportError, since: float) -> None:
        """Fail the next calls at once, so that a dead server holds no threads; the first one after that tries again.

        A server that has answered any call `since` (monotonic) is slow, or took too much at once, and is not dead.
        """
        with self._lock:
            if self._answered(since):
                return
        if isinstance(error, ServerUnavailable) and "being connected to" in str(error):
            return
        self._why = str(error)
        self._rest = min(_REST_LONGEST, self._rest * 2 or _REST_FIRST)
        self._rest_until = self._now() + self._rest

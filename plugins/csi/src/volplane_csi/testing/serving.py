"""How calls come to a fake driver: in the process, in no time, or through gRPC on a unix socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from volplane.csi.client import CallError
from volplane.csi.contract import PACKAGE, SERVICES
from volplane_csi.testing.driver import FakeDriver
from volplane_testing.cloud import CloudFailure, Reply

__all__ = ["InProcess", "served"]


def _answer(fake: FakeDriver, method: str, content: bytes) -> Reply:
    try:
        return fake.request(method, fake.read(method, content))
    except CloudFailure as error:
        return Reply(error=error)


class InProcess:
    """A connection to a fake driver without a socket: nothing waits, so that virtual time can be used."""

    def __init__(self, fake: FakeDriver) -> None:
        self._fake = fake

    def __call__(self, _path: Path) -> InProcess:
        """Return itself, as what opens connections."""
        return self

    def call(self, method: str, content: bytes, seconds: float) -> bytes:
        """Return the answer. Raises CallError."""
        reply = _answer(self._fake, method, content)
        if reply.closed:
            raise CallError(method, "UNAVAILABLE", "the driver does not listen on its socket", sent=False)
        if reply.lost:
            raise CallError(method, "DEADLINE_EXCEEDED", f"no answer within {seconds:g} s")
        if reply.error is not None:
            raise CallError(method, reply.error.code, reply.error.message)
        return _content(reply)

    def close(self) -> None:
        """There is nothing to close."""


def _content(reply: Reply) -> bytes:
    content: bytes = dict(reply.result or {})["response"].SerializeToString()
    return content


@contextmanager
def served(fake: FakeDriver, path: Path, *, before: Callable[[str], None] = lambda _method: None) -> Iterator[Any]:
    """Serve the driver on a socket while the block runs. before: called with the method of each call."""
    server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))

    def behaviour(method: str) -> Callable[[bytes, Any], bytes]:
        def behave(content: bytes, context: Any) -> bytes:
            before(method)
            reply = _answer(fake, method, content)
            if reply.lost or reply.closed:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed")
            if reply.error is not None:
                context.abort(getattr(grpc.StatusCode, reply.error.code), reply.error.message)
            return _content(reply)

        return behave

    for service, methods in SERVICES.items():
        handlers = {each: grpc.unary_unary_rpc_method_handler(behaviour(each)) for each in methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield server
    finally:
        server.stop(0.0).wait(10.0)

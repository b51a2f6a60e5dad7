"""The HTTP face of a FakeEC2: loopback only, threads, bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from volplane_aws_ebs.testing.core import FakeEC2
from volplane_aws_ebs.testing.exchange import Exchange, Message

__all__ = ["FakeEC2Server"]

_MOST_CONNECTIONS = 128
_MOST_BODY = 4 << 20
_IDLE_SECONDS = 60.0


class FakeEC2Server:
    """Serves a FakeEC2 under `url` until `close`; also a context manager. Needs a clock that moves by itself.

    port: 0 takes a free one. At most 128 connections at once, each with a thread; further ones wait to be accepted.
    """

    def __init__(self, fake: FakeEC2, *, port: int = 0) -> None:
        self.fake = fake
        self._server = _Server(("127.0.0.1", port), Exchange(fake))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="fake-ec2")
        self._thread.start()

    @property
    def url(self) -> str:
        """For boto3's `endpoint_url`, and for the driver's options `endpoint` and `sts_endpoint`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop serving and close every connection."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], exchange: Exchange) -> None:
        self.exchange = exchange
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        try:
            super().shutdown_request(request)
        finally:
            self._free.release()

    def server_close(self) -> None:
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are nobody's mistake."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: _Server
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _MOST_BODY:
            self._send(Message(413 if length.isdigit() else 411))
            self.close_connection = True
            return
        body = self.rfile.read(int(length)).decode("utf-8", "replace")
        message = self.server.exchange.answer(body, {key.lower(): value for key, value in self.headers.items()})
        if message.lost or message.closed:
            self.close_connection = True
            return
        self._send(message)

    def _send(self, message: Message) -> None:
        self.send_response(message.status)
        self.send_header("Content-Type", "text/xml;charset=UTF-8")
        self.send_header("Content-Length", str(len(message.body)))
        self.end_headers()
        self.wfile.write(message.body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Nobody reads it."""

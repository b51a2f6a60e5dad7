"""The HTTP face of a fake cloud, on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

__all__ = ["FakeCloudServer", "HttpRequest", "HttpResponse"]

_MAX_CONNECTIONS = 128
_MAX_BODY = 4 << 20
_IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. target: path and query, as in the request line. headers: with lower-case names."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. lost: none is sent after the request was served. closed: the connection ends before the request."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    lost: bool = False
    closed: bool = False


Answer = Callable[[HttpRequest], HttpResponse]
"""From a request to its response. Called by several threads at once."""


class FakeCloudServer:
    """Serves a fake cloud under `url` until `close`; also a context manager. The fake needs a clock that runs.

    answer: from a request to its response; safe for threads. port: 0 = any free port. At most 128 connections at once,
    with a thread each; more wait to be accepted.
    """

    def __init__(self, answer: Answer, *, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), answer)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="fake-cloud")
        self._thread.start()

    @property
    def url(self) -> str:
        """The endpoint, for clients and for the options of a driver."""
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

    def __init__(self, address: tuple[str, int], answer: Answer) -> None:
        self.answer = answer
        self._free = threading.Semaphore(_MAX_CONNECTIONS)
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
        """Ignore clients that close their connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: _Server
    wbufsize = -1
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0" if self.command in ("GET", "DELETE") else "")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self._send(HttpResponse(413 if length.isdigit() else 411))
            self.close_connection = True
            return
        headers = {key.lower(): value for key, value in self.headers.items()}
        response = self.server.answer(HttpRequest(self.command, self.path, headers, self.rfile.read(int(length))))
        if response.lost or response.closed:
            self.close_connection = True
            return
        self._send(response)

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _send(self, response: HttpResponse) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Do not log."""

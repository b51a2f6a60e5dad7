"""API servers that cannot be reached or refuse us, as every command says them."""

import base64
import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
import yaml

from volplane.cli.main import main
from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.credentials import Credentials, Identity
from volplane.kube.http.connection import Connection, Tls
from volplane.kube.http.route import Address, ConnectTimeoutError, Route, refused, why_unreachable
from volplane.kube.http.transport import HttpTransport
from volplane.kube.transport import Request
from volplane_embedded.apiserver.certificates import ensure_certificate, server_context


def kubeconfig(directory: Path, server: str, authority: str | None = None) -> str:
    cluster = {"server": server}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (directory / "kubeconfig").write_text(yaml.safe_dump(content))
    return str(directory / "kubeconfig")


def serve(answer: bytes, context: ssl.SSLContext | None) -> tuple[socket.socket, int]:
    """A server that gives every connection this answer, until its socket is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) if context else connection as stream:
                    stream.recv(65536)
                    stream.sendall(answer)
            except OSError:
                continue

    Thread(target=run, daemon=True).start()
    return listener, listener.getsockname()[1]


@pytest.fixture
def answering() -> Iterator[list[socket.socket]]:
    listeners: list[socket.socket] = []
    yield listeners
    for each in listeners:
        each.shutdown(socket.SHUT_RDWR)
        each.close()


def answered(status: str, message: str) -> bytes:
    body = f'{{"kind":"Status","message":"{message}","code":{status.split(maxsplit=1)[0]}}}'
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


COMMANDS = (["status"], ["explain", "pvc", "data"], ["explain", "pod", "x"], ["drain"], ["check", "--cluster"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_the_address_of_a_server_that_is_not_there(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--kubeconfig", kubeconfig(tmp_path, "https://127.0.0.1:1")]) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert "the API server https://127.0.0.1:1 cannot be reached: nothing listens there (connection refused)" in err
    assert "check that it runs" in err
    assert "SSLContext" not in err


def test_a_name_that_is_not_known_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--kubeconfig", kubeconfig(tmp_path, "https://server.invalid:6443")]) == 1
    err = capsys.readouterr().err
    assert "https://server.invalid:6443 cannot be reached: its name is not known" in err
    assert "check the name in the kubeconfig" in err


def test_a_certificate_that_is_not_trusted_is_said(
    tmp_path: Path, answering: list[socket.socket], capsys: pytest.CaptureFixture[str]
) -> None:
    made = ensure_certificate(tmp_path, ["127.0.0.1"], datetime.now(UTC))
    listener, port = serve(b"", server_context(made, tmp_path))
    answering.append(listener)
    assert main(["status", "--kubeconfig", kubeconfig(tmp_path, f"https://127.0.0.1:{port}")]) == 1
    err = capsys.readouterr().err
    assert f"https://127.0.0.1:{port} cannot be reached: its certificate is not trusted (" in err
    assert "check certificate-authority-data" in err


def test_a_port_that_speaks_no_tls_is_said(
    tmp_path: Path, answering: list[socket.socket], capsys: pytest.CaptureFixture[str]
) -> None:
    listener, port = serve(answered("200 OK", ""), None)
    answering.append(listener)
    assert main(["status", "--kubeconfig", kubeconfig(tmp_path, f"https://127.0.0.1:{port}")]) == 1
    assert f"https://127.0.0.1:{port} cannot be reached: TLS fails" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("401 Unauthorized", "does not accept these credentials (401): said; check the user of the kubeconfig"),
        ("403 Forbidden", "forbids it (403): said; grant it that right"),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["drain"]])
def test_a_server_that_refuses_us_is_said_with_what_to_check(
    *,
    command: list[str],
    status: str,
    words: str,
    tmp_path: Path,
    answering: list[socket.socket],
    capsys: pytest.CaptureFixture[str],
) -> None:
    listener, port = serve(answered(status, "said"), None)
    answering.append(listener)
    assert main([*command, "--kubeconfig", kubeconfig(tmp_path, f"http://127.0.0.1:{port}")]) == 1
    assert f"the API server http://127.0.0.1:{port} {words}" in capsys.readouterr().err


def test_other_answers_stay_as_they_are() -> None:
    error = ApiError("the request is bad", status=400)
    assert refused("https://here", error) is error


def test_an_error_that_nobody_foresaw_is_said_all_the_same() -> None:
    assert why_unreachable(OSError(5, "Input/output error")).startswith("Input/output error; check its address")
    timed_out = why_unreachable(OSError(errno.ETIMEDOUT, "Connection timed out"))
    assert timed_out.startswith("it had no answer within the time that the network allows;")


class Nowhere(Route):
    """A way on which no connection comes about."""

    async def connect(self, tls: Tls, lost: Callable[[Connection], None]) -> Connection:
        raise ConnectTimeoutError


class Anonymous:
    """A source of no credentials."""

    async def read(self, *, refused: bool) -> Identity:
        return Identity()


async def test_a_call_and_a_watch_that_cannot_connect_say_how_long_that_was_tried() -> None:
    route = Nowhere(server=Address.parse("http://192.0.2.1:6443", what="the server"))
    transport = HttpTransport(route, Credentials(Anonymous(), Identity()))
    for request in (Request(path="/version", seconds=30.0), Request(path="/version", seconds=4.0)):
        tried = f"no answer within {min(request.seconds, 10.0):g} s;"
        with pytest.raises(ApiUnavailable, match=tried) as caught:
            await transport.send(request)
        assert caught.value.status == 0
        with pytest.raises(ApiUnavailable, match=tried):
            async with transport.stream(request):
                pass
    await transport.close()

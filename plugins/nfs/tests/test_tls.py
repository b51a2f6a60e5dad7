"""RPC over TLS (RFC 9289), against a server that is strict about each byte of the beginning."""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from volplane import BackendError, Done, InvalidArgument, Unavailable
from volplane_nfs import NfsBackend
from volplane_nfs.nfs4 import Address, Client, ServerUnavailable, TlsDial
from volplane_nfs.nfs4.files import make_directory, names, root_handle, write_file
from volplane_nfs.nfs4.rpc import RecordParser, framed
from volplane_nfs.testing import ModelServer
from volplane_testing.cloud import SteppedClock

from .conftest import Site

_DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates, which are files."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = directory / f"{name}.crt"
        own = self.builder(self.name, self.key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.file.write_bytes(own.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - _DAY).not_valid_after(now + _DAY)

    def issue(self, name: str, *alternatives: x509.GeneralName) -> Path:
        """Certificate and key in one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self.builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        if alternatives:
            made = made.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        file = self.directory / f"{name}.pem"
        file.write_bytes(
            made.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return file


OFFER = bytes.fromhex("00000001 00000000 00000000 00000008") + b"STARTTLS" + bytes(4)
"""A reply, behind its xid: accepted, with the word of RFC 9289 as verifier."""
LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


@dataclass
class Server:
    """A model of a server behind RPC over TLS."""

    model: ModelServer
    certificate: Path
    clients: Path | None = None
    """Authority of which one has to be a client, None = no certificate is asked for."""
    answer: Callable[[bytes], bytes] = lambda xid: xid + OFFER
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion] = (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
    alpn: tuple[str, ...] = ("sunrpc",)
    port: int = 0
    probes: list[bytes] = field(default_factory=list)
    met: list[Any] = field(default_factory=list)
    """Names in the certificates of clients."""

    @contextmanager
    def serve(self) -> Iterator[Server]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            yield self
            listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = self.versions
        context.load_cert_chain(self.certificate)
        context.set_alpn_protocols(list(self.alpn))
        if self.clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.clients)
        with connection, suppress(OSError):
            probe = connection.recv(1 << 16)
            self.probes.append(probe)
            connection.sendall(framed(self.answer(probe[4:8])))
            with context.wrap_socket(connection, server_side=True) as secured:
                self.met.append((secured.getpeercert() or {}).get("subject"))
                parser = RecordParser(1 << 20)
                while data := secured.recv(1 << 16):
                    for record in parser.feed(data):
                        reply = self.model.answer(record)
                        if reply is None:
                            return
                        secured.sendall(framed(reply))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def server(model: ModelServer, authority: Authority) -> Iterator[Server]:
    with Server(model, authority.issue("server", LOOPBACK)).serve() as serving:
        yield serving


def connect(server: Server, **options: Any) -> Client:
    return Client(Address("127.0.0.1", server.port), timeout=5.0, dial=TlsDial(**options))


def why_refused(server: Server, **options: Any) -> str:
    with pytest.raises(ServerUnavailable) as refused:
        root_handle(connect(server, **options), (b"vol",))
    return str(refused.value)


def test_a_connection_begins_as_the_specification_says_and_serves_calls(server: Server, authority: Authority) -> None:
    client = connect(server, authorities=str(authority.file))
    share = root_handle(client, (b"vol",))
    assert make_directory(client, share, b"new", 0o750)
    assert names(client, share) == [b"new"]
    client.close()
    [probe] = server.probes
    # A call of NULL of NFS 4 with AUTH_TLS and nothing else, in one fragment (RFC 9289, section 4.1).
    assert probe[:4] == bytes.fromhex("80000028")
    assert probe[8:].hex(" ", 4) == ("00000000 00000002 000186a3 00000004 00000000 00000007 00000000 00000000 00000000")


def test_many_threads_use_one_connection_at_once(server: Server, authority: Authority) -> None:
    client = Client(
        Address("127.0.0.1", server.port), timeout=20.0, connections=1, dial=TlsDial(authorities=str(authority.file))
    )
    share = root_handle(client, (b"vol",))
    data = {f"file{number}".encode(): bytes([number]) * 30_000 for number in range(8)}
    threads = [threading.Thread(target=write_file, args=(client, share, *each)) for each in data.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(client, share)) == sorted(data)
    assert {name: server.model.share.children[name].data for name in data} == data
    client.close()


def test_a_server_without_tls_gets_no_call(model: ModelServer, authority: Authority) -> None:
    with model.serve() as port:
        client = Client(Address("127.0.0.1", port), timeout=2.0, dial=TlsDial(authorities=str(authority.file)))
        with pytest.raises(ServerUnavailable, match="TLS"):
            root_handle(client, (b"vol",))
    assert model.calls == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("00000001 00000000 00000000 00000000 00000000", "offers no TLS"),
        ("00000001 00000001 00000001 00000001", "offers no TLS"),
        ("00000001 00000000 00000000 00000008 5354415254544c54 00000000", "offers no TLS"),
        ("00000001", "cannot be decoded"),
    ],
    ids=["no STARTTLS", "denied", "another word", "cut off"],
)
def test_an_answer_that_does_not_offer_tls_ends_the_connection(
    server: Server, authority: Authority, answer: str, why: str
) -> None:
    server.answer = lambda xid: xid + bytes.fromhex(answer)
    assert why in why_refused(server, authorities=str(authority.file))
    assert server.met == []


def test_what_a_stranger_puts_behind_the_answer_is_not_taken_for_the_servers(
    server: Server, authority: Authority
) -> None:
    server.answer = lambda xid: xid + OFFER + framed(b"injected")
    client = connect(server, authorities=str(authority.file))
    with suppress(ServerUnavailable):
        assert names(client, root_handle(client, (b"vol",))) == []


def test_a_server_of_another_authority_is_refused(server: Server, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    assert "certificate is not accepted" in why_refused(server, authorities=str(other.file))
    assert server.model.calls == 0


def test_a_server_of_another_name_is_refused_unless_that_is_asked_for(server: Server, authority: Authority) -> None:
    server.certificate = authority.issue("filer", x509.DNSName("filer.example.com"))
    assert "127.0.0.1" in why_refused(server, authorities=str(authority.file))
    client = connect(server, authorities=str(authority.file), server_name="filer.example.com")
    assert names(client, root_handle(client, (b"vol",))) == []
    client.close()


def test_tls_before_1_3_and_other_protocols_are_refused(server: Server, authority: Authority) -> None:
    server.alpn = ("h2",)
    assert "TLS" in why_refused(server, authorities=str(authority.file))
    server.alpn, server.versions = ("sunrpc",), (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    assert "the server refuses TLS" in why_refused(server, authorities=str(authority.file))
    assert server.model.calls == 0


def test_a_server_that_asks_for_it_gets_the_drivers_certificate(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    clients = Authority(tmp_path, "clients")
    server.clients = clients.file
    mine = clients.issue("driver")
    client = connect(server, authorities=str(authority.file), certificate=str(mine))
    assert names(client, root_handle(client, (b"vol",))) == []
    client.close()
    assert server.met == [((("commonName", "driver"),),)]
    with pytest.raises(ServerUnavailable):
        root_handle(connect(server, authorities=str(authority.file)), (b"vol",))


def test_a_certificate_that_was_replaced_is_used_by_the_next_connection(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.crt"
    other = Authority(tmp_path, "other")
    shutil.copy(other.file, trusted)
    clock = SteppedClock()
    client = Client(
        Address("127.0.0.1", server.port), timeout=5.0, dial=TlsDial(authorities=str(trusted)), now=lambda: clock.now
    )
    with pytest.raises(ServerUnavailable, match="not accepted"):
        root_handle(client, (b"vol",))
    shutil.copy(authority.file, trusted)
    clock.advance(60.0)
    assert names(client, root_handle(client, (b"vol",))) == []
    client.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"authorities": "/nonexistent/ca.crt"}, "/nonexistent/ca.crt cannot be read"),
        (
            {"certificate": "/nonexistent/mine.crt", "key": "/nonexistent/mine.key"},
            "/nonexistent/mine.key cannot be used",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(server: Server, options: dict[str, str], why: str) -> None:
    assert why in why_refused(server, **options)


def test_a_driver_works_over_tls_and_lets_nodes_mount_by_it(server: Server, authority: Authority) -> None:
    site = Site(f"nfs://127.0.0.1:{server.port}/vol", tls=True, tls_authorities=str(authority.file)).start()
    made = site.provision()
    assert made[1].mount_options == (f"port={server.port}", "xprtsec=tls")
    assert site.delete_once(site.volume(made)) == Done()
    site.stop()
    assert server.met


def test_a_class_that_says_how_nodes_connect_is_left_alone(model: ModelServer, site: Site) -> None:
    secured = Site(dial=model.dial, tls=True)
    share = secured.backend._shares.all[0]
    assert share.mount_options(()) == ("xprtsec=tls",)
    assert share.mount_options(("nconnect=4", "xprtsec=none")) == ()
    proven = Site(dial=model.dial, tls=True, tls_certificate="/etc/driver.pem")
    assert proven.backend._shares.all[0].mount_options(()) == ("xprtsec=mtls",)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tls_authorities": "/ca.crt"}, "tls_authorities: '/ca.crt' needs `tls: true`"),
        ({"tls": True, "tls_key": "/mine.key"}, "tls_key: '/mine.key' needs its certificate"),
        ({"tls": True, "client": "pynfs"}, "client pynfs has no TLS"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        NfsBackend({"shares": ("nfs://filer.example.com/vol",), **options})
    assert why in str(refused.value)


def test_a_server_that_ends_tls_is_said_so(server: Server, authority: Authority) -> None:
    site = Site(f"nfs://127.0.0.1:{server.port}/vol", tls=True, tls_authorities=str(authority.file)).start()
    server.certificate = authority.issue("stranger", x509.DNSName("stranger.example.com"))
    for client in site.backend._shares._clients.values():
        client.close()
    with pytest.raises((Unavailable, BackendError), match="certificate is not accepted"):
        site.provision()
    site.stop()

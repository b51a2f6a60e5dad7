"""An authority that signs certificates for servers and clients, and a TLS server that tells its clients apart."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Guarded", "guarded", "verify_strictly"]

_DAY = timedelta(days=1)


class Authority:
    """A private authority. Its certificates have no authority key identifier, as those of many scripts."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.file = directory / f"{name}.crt"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for a client, or a server on 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        signed = builder.add_extension(address, critical=False).sign(self._key, hashes.SHA256())
        files = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        files[0].write_bytes(signed.public_bytes(Encoding.PEM))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - _DAY).not_valid_after(now + _DAY)


def verify_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default TLS context of clients be strict, as it is from Python 3.13 on."""
    default: Callable[..., ssl.SSLContext] = ssl.create_default_context

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = default(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


class Guarded:
    """Who may call the server: common names of certificates, or values of the header. `seen` lists who did."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.accepts: set[str] = set()
        self.seen: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            certificate = writer.get_extra_info("peercert") or {}
            name = dict(pair[0] for pair in certificate.get("subject", ())).get("commonName", "")
            lines = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("authorization")]
            caller = name or (lines[0] if lines else "nobody")
            self.seen.append(caller)
            status = "200 OK" if caller in self.accepts else "401 Unauthorized"
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}".encode())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def guarded(authority: Authority, *, clients: Authority | None = None) -> AsyncIterator[Guarded]:
    """A server with a certificate of `authority`; clients: who must have signed those of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.file)
    server = Guarded("")
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()

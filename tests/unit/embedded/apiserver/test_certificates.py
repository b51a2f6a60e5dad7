from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from volplane_embedded.apiserver.certificates import Certificate, ensure_certificate, make_certificate, server_context

NOW = datetime.now(UTC)
HOSTS = ["127.0.0.1", "localhost", "::1"]


async def connect(certificate: Certificate, directory: Path, name: str) -> None:
    """A TLS handshake with a strict client that trusts the certificate alone."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    client = ssl.create_default_context(cadata=certificate.certificate)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=server_context(certificate, directory))
    try:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("name", HOSTS)
def test_a_strict_client_accepts_the_certificate_for_its_hosts(tmp_path: Path, name: str) -> None:
    asyncio.run(connect(make_certificate(HOSTS, NOW), tmp_path, name))


def test_a_client_refuses_it_for_another_host(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(connect(make_certificate(["localhost"], NOW), tmp_path, "127.0.0.1"))


def test_every_made_certificate_is_valid(tmp_path: Path) -> None:
    for _ in range(8):
        asyncio.run(connect(make_certificate(HOSTS, NOW), tmp_path, "localhost"))


def test_a_certificate_is_kept_for_the_same_hosts_and_made_anew_for_others(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path, HOSTS, NOW)
    again = ensure_certificate(tmp_path, list(reversed(HOSTS)), NOW)
    other = ensure_certificate(tmp_path, ["localhost"], NOW)
    assert (again.certificate, again.key) == (first.certificate, first.key)
    assert other.certificate != first.certificate
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_loading_leaves_no_key_behind(tmp_path: Path) -> None:
    server_context(make_certificate(HOSTS, NOW), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_names_its_own_key_as_the_authoritys_as_strict_clients_want() -> None:
    made = x509.load_pem_x509_certificate(make_certificate(HOSTS, NOW).certificate.encode())
    own = made.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    authority = made.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert authority.key_identifier == own.digest


def test_a_kept_file_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("no certificate")
    made = ensure_certificate(tmp_path, HOSTS, NOW)
    assert ensure_certificate(tmp_path, HOSTS, NOW) == made

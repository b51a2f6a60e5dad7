"""The TLS certificate of the server.

kubectl sends no credentials over plain HTTP, so a token needs TLS even on loopback. The certificate is self-signed and
its own authority: the kubeconfig carries it as certificate-authority-data. P-256, ECDSA with SHA-256 (RFC 5480), and
the extensions that strict verification requires (RFC 5280, section 4.2; on by default since Python 3.13).
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LIFETIME: Final = timedelta(days=3650)
_CERTIFICATE_MARK: Final = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str


def ensure_certificate(directory: Path, hosts: Sequence[str], now: datetime) -> Certificate:
    """Return the certificate kept in `directory` if it is for exactly these hosts, else make and keep a new one.

    The file `server.pem` (mode 0600) holds key and certificate. Raises OSError.
    """
    path = directory / "server.pem"
    kept = _read(path)
    if kept is not None and _hosts_of(kept) == set(hosts):
        return kept
    made = make_certificate(hosts, now)
    fresh = directory / "server.pem.new"
    fresh.unlink(missing_ok=True)
    _write_private(fresh, made.key + made.certificate)
    fresh.rename(path)
    return made


def make_certificate(hosts: Sequence[str], now: datetime) -> Certificate:
    """Make a self-signed server certificate for host names and addresses, valid for ten years from a day before
    `now`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "volplane")])
    start = now.astimezone(UTC) - timedelta(days=1)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(certificate.public_bytes(Encoding.PEM).decode(), pem.decode())


def server_context(certificate: Certificate, directory: Path) -> ssl.SSLContext:
    """Make the TLS context of a server.

    Python loads keys from files only: one of mode 0600 is written to `directory` and removed again.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = directory / f"load-{secrets.token_hex(8)}.pem"
    try:
        _write_private(path, certificate.key + certificate.certificate)
        context.load_cert_chain(path)
    finally:
        path.unlink(missing_ok=True)
    return context


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _read(path: Path) -> Certificate | None:
    try:
        key, mark, certificate = path.read_text().partition(_CERTIFICATE_MARK)
    except FileNotFoundError:
        return None
    return Certificate(mark + certificate, key)


def _hosts_of(kept: Certificate) -> set[str]:
    """Return the names and addresses of the certificate; none if it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(kept.certificate.encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return set()
    return {str(name.value) for name in names}


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)

"""A self-signed certificate for the server, made without any dependency.

kubectl sends no credentials over plain HTTP, so a token needs TLS even on loopback. The certificate is its own
authority and stands in the kubeconfig. ECDSA over P-256 with SHA-256 (FIPS 186-4), X.509 (RFC 5280), DER by hand:
it is signed once, with a key that no other message is ever signed with by this code.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import secrets
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

__all__ = ["Certificate", "ensure_certificate", "make_certificate", "server_context"]

# P-256 (SEC 2): prime, order, generator; a = -3.
_P: Final = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None

_EC_PUBLIC_KEY: Final = "1.2.840.10045.2.1"
_P256: Final = "1.2.840.10045.3.1.7"
_ECDSA_SHA256: Final = "1.2.840.10045.4.3.2"
_COMMON_NAME: Final = "2.5.4.3"
_SUBJECT_ALT_NAME: Final = "2.5.29.17"
_BASIC_CONSTRAINTS: Final = "2.5.29.19"
_SUBJECT_KEY_ID: Final = "2.5.29.14"
_KEY_USAGE: Final = "2.5.29.15"
_SIGNS: Final = b"\x03\x02\x02\x84"
"""BIT STRING digitalSignature, keyCertSign: strict verifiers want it of an authority."""
_LIFETIME: Final = timedelta(days=3650)


class Certificate:
    """A certificate and its private key, both PEM."""

    __slots__ = ("certificate", "key")

    def __init__(self, certificate: str, key: str) -> None:
        self.certificate = certificate
        self.key = key


def ensure_certificate(directory: Path, hosts: Sequence[str], now: datetime) -> Certificate:
    """The certificate kept in a directory (files of mode 0600), made where there is none for these hosts."""
    path = directory / "server.pem"
    wanted = f"hosts: {' '.join(sorted(set(hosts)))}\n"
    try:
        head, _, rest = path.read_text().partition("-----BEGIN")
        key, divider, certificate = ("-----BEGIN" + rest).partition("-----BEGIN CERTIFICATE-----")
        if head == wanted:
            return Certificate(divider + certificate, key)
    except FileNotFoundError:
        pass
    made = make_certificate(hosts, now)
    fresh = directory / "server.pem.new"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(wanted + made.key + made.certificate)
    fresh.rename(path)
    return made


def server_context(certificate: Certificate, directory: Path) -> ssl.SSLContext:
    """A TLS context of a server. `directory` holds the files while they are loaded; only this user can read them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = directory / f"load-{secrets.token_hex(8)}.pem"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(certificate.key + certificate.certificate)
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context


def make_certificate(hosts: Sequence[str], now: datetime) -> Certificate:
    """A new self-signed server certificate for host names and addresses, valid from a day before `now`."""
    secret = secrets.randbelow(_N - 1) + 1
    public = _multiply(secret, _G)
    assert public is not None  # noqa: S101 - no multiple below the order is the point at infinity
    point = b"\x04" + public[0].to_bytes(32) + public[1].to_bytes(32)
    body = _to_be_signed(point, hosts, now)
    certificate = _sequence(body, _sequence(_oid(_ECDSA_SHA256)), _bits(_signature(secret, body)))
    key = _sequence(_integer(1), _octets(secret.to_bytes(32)), _tagged(0, _oid(_P256)), _tagged(1, _bits(point)))
    return Certificate(_pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", key))


def _to_be_signed(point: bytes, hosts: Sequence[str], now: datetime) -> bytes:
    name = _sequence(_set(_sequence(_oid(_COMMON_NAME), _text("volplane"))))
    start = now.astimezone(UTC) - timedelta(days=1)
    algorithm = _sequence(_oid(_EC_PUBLIC_KEY), _oid(_P256))
    extensions = _sequence(
        _sequence(_oid(_BASIC_CONSTRAINTS), _boolean(True), _octets(_sequence(_boolean(True)))),
        _sequence(_oid(_KEY_USAGE), _boolean(True), _octets(_SIGNS)),
        _sequence(_oid(_SUBJECT_KEY_ID), _octets(_octets(hashlib.sha256(point).digest()[:20]))),
        _sequence(_oid(_SUBJECT_ALT_NAME), _octets(_sequence(*(_host(host) for host in hosts)))),
    )
    return _sequence(
        _tagged(0, _integer(2)),
        _integer(secrets.randbits(127) + 1),
        _sequence(_oid(_ECDSA_SHA256)),
        name,
        _sequence(_time(start), _time(start + _LIFETIME)),
        name,
        _sequence(algorithm, _bits(point)),
        _tagged(3, extensions),
    )


def _host(host: str) -> bytes:
    """A GeneralName: an address or a DNS name."""
    try:
        return _element(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return _element(0x82, host.encode("ascii"))


# Elliptic curve


def _add(one: _Point, other: _Point) -> _Point:
    if one is None:
        return other
    if other is None:
        return one
    if one[0] == other[0]:
        if (one[1] + other[1]) % _P == 0:
            return None
        slope = 3 * (one[0] * one[0] - 1) * pow(2 * one[1], -1, _P) % _P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, _P) % _P
    x = (slope * slope - one[0] - other[0]) % _P
    return x, (slope * (one[0] - x) - one[1]) % _P


def _multiply(factor: int, point: _Point) -> _Point:
    total: _Point = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _signature(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest())
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        point = _multiply(nonce, _G)
        r = point[0] % _N if point is not None else 0
        s = pow(nonce, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


# DER


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _element(0x30, b"".join(parts))


def _set(*parts: bytes) -> bytes:
    return _element(0x31, b"".join(parts))


def _tagged(number: int, content: bytes) -> bytes:
    return _element(0xA0 | number, content)


def _integer(value: int) -> bytes:
    return _element(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def _boolean(value: bool) -> bytes:
    return _element(0x01, b"\xff" if value else b"\x00")


def _octets(content: bytes) -> bytes:
    return _element(0x04, content)


def _bits(content: bytes) -> bytes:
    return _element(0x03, b"\x00" + content)


def _text(value: str) -> bytes:
    return _element(0x0C, value.encode())


def _time(moment: datetime) -> bytes:
    """UTCTime until 2049, GeneralizedTime after (RFC 5280, 4.1.2.5)."""
    if moment.year < 2050:
        return _element(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())
    return _element(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())


def _oid(dotted: str) -> bytes:
    first, second, *rest = (int(part) for part in dotted.split("."))
    content = bytearray((first * 40 + second,))
    for number in rest:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        content += bytes(reversed(groups))
    return _element(0x06, bytes(content))


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))

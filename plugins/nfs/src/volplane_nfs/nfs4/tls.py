"""RPC over TLS (RFC 9289): a call of the NULL procedure with AUTH_TLS asks for it, then the connection is TLS 1.3.

One thread may send while another one receives, which OpenSSL does not allow on one connection. So the connection is
encrypted in memory, under a lock that is never held while the network is waited for.
"""

from __future__ import annotations

import os
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from volplane_nfs.nfs4.connection import Address, Dial, Stream, dial_tcp
from volplane_nfs.nfs4.rpc import AUTH_NONE, NULL, RecordParser, call_header, call_record
from volplane_nfs.nfs4.xdr import MalformedData, Reader

__all__ = ["ALPN", "AUTH_TLS", "STARTTLS", "TlsDial"]

AUTH_TLS: Final = 7
STARTTLS: Final = b"STARTTLS"
ALPN: Final = "sunrpc"
_PROBE_HEADER: Final = call_header(NULL, struct.pack(">II", AUTH_TLS, 0))
_LARGEST_ANSWER: Final = 1024
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class TlsDial:
    """Connects by TLS; a `Dial`. Files are read for each connection, so that they may be replaced at any time."""

    authorities: str = ""
    """File of certificates (PEM) of which one has to have signed the server's; "" = those of the system."""
    certificate: str = ""
    """File (PEM) by which the client proves itself, "" = it does not."""
    key: str = ""
    """File (PEM) of its private key, "" = it is in `certificate`."""
    server_name: str = ""
    """What the server's certificate has to name, "" = the host of the address."""
    dial: Dial = dial_tcp

    def __call__(self, address: Address, seconds: float) -> Stream:
        """Connect within so many seconds; raises OSError, which says what the server or its certificate lacks."""
        deadline = time.monotonic() + seconds
        context = self._context()
        stream = self.dial(address, seconds)
        try:
            _ask_for_tls(stream, deadline)
            return _handshake(stream, context, self.server_name or address.host.partition("%")[0], deadline)
        except BaseException:
            stream.close()
            raise

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
        except (OSError, ValueError) as error:
            raise OSError(f"the certificates of {self.authorities} cannot be read: {_reason(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([ALPN])
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key or None)
            except (OSError, ValueError) as error:
                files = " and ".join(filter(None, (self.certificate, self.key)))
                raise OSError(f"the certificate and key of {files} cannot be used: {_reason(error)}") from error
        return context


class _TlsStream:
    """A connection whose handshake is done. One thread may send while another one receives."""

    def __init__(self, stream: Stream, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._stream = stream
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._lock = threading.Lock()
        self._unsent = b""
        """Encrypted, to be sent before anything else."""
        self._taken = 0
        """Bytes of the data of the next `send` that are in `_unsent`."""

    def send(self, data: bytes | memoryview, /) -> int:
        """Send a part of the data. After BlockingIOError the same data has to be given again, as `Connection` does."""
        if not self._taken:
            with self._lock:
                self._taken = self._tls.write(data[:_CHUNK])
                self._unsent += self._outgoing.read()
        while self._unsent:
            self._unsent = self._unsent[self._stream.send(self._unsent) :]
        taken, self._taken = self._taken, 0
        return taken

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return what was received. flags: only a look at whether the server closed the connection."""
        if flags:
            return self._stream.recv(size, flags)
        while True:
            with self._lock:
                try:
                    return self._tls.read(size)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return b""
            data = self._stream.recv(_CHUNK)
            if not data:
                return b""
            with self._lock:
                self._incoming.write(data)

    def close(self) -> None:
        self._stream.close()


def _ask_for_tls(stream: Stream, deadline: float) -> None:
    """Make the probe of RFC 9289, section 4.1. Raises OSError."""
    xid = int.from_bytes(os.urandom(4), "big")
    _send_all(stream, call_record(xid, _PROBE_HEADER, b""), deadline)
    parser, records = RecordParser(_LARGEST_ANSWER), list[bytes]()
    try:
        while not records:
            records = parser.feed(_received(stream, deadline))
        reader = Reader(records[0])
        wanted = (xid, 1, 0, AUTH_NONE)
        found = tuple(reader.uint32() for _ in range(4))
        offered = found == wanted and reader.uint32() == len(STARTTLS) and records[0][20:28] == STARTTLS
    except MalformedData as error:
        raise ConnectionError(f"its answer to AUTH_TLS cannot be decoded: {error}") from error
    if not offered:
        raise ConnectionError("the server offers no TLS (RFC 9289): enable it there, or set the option tls to false")


def _handshake(stream: Stream, context: ssl.SSLContext, name: str, deadline: float) -> Stream:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            _send_all(stream, outgoing.read(), deadline)
            incoming.write(_received(stream, deadline))
        except ssl.SSLCertVerificationError as error:
            raise ConnectionError(f"the server's certificate is not accepted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise ConnectionError(f"the server refuses TLS: {_reason(error)}") from error
        else:
            break
    _send_all(stream, outgoing.read(), deadline)
    if tls.selected_alpn_protocol() != ALPN:
        raise ConnectionError(f"the server does not speak RPC over TLS (ALPN {tls.selected_alpn_protocol()!r})")
    return _TlsStream(stream, tls, incoming, outgoing)


def _send_all(stream: Stream, data: bytes, deadline: float) -> None:
    while data:
        try:
            data = data[stream.send(data) :]
        except BlockingIOError:
            _require_time(deadline)


def _received(stream: Stream, deadline: float) -> bytes:
    while True:
        try:
            data = stream.recv(_CHUNK)
        except BlockingIOError:
            _require_time(deadline)
        else:
            if not data:
                raise ConnectionError("the server closed the connection when it was asked for TLS")
            return data


def _require_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise TimeoutError("timed out")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)

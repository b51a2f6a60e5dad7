"""A small client of NFSv4 in user space: no mount, no privileges, nothing but the standard library.

    client = Client(Address("filer.example.com"))
    (_, _, handle) = client.compound(PUTROOTFH(), LOOKUP(b"export"), GETFH())

It speaks 4.1 with sessions, and 4.0 where the server has no more (RFC 8881, RFC 7530), over ONC RPC with AUTH_SYS
(RFC 5531). `Directory` in `files` has directories, attributes, symbolic links and small files.
"""

from volplane_nfs.nfs4.client import Client, Compounds, done, values_of
from volplane_nfs.nfs4.connection import Address, Dial, Stream, dial_tcp
from volplane_nfs.nfs4.errors import (
    NfsError,
    NoAnswer,
    NotAnNfsServer,
    OutcomeUnknown,
    ServerUnavailable,
    TransportError,
)
from volplane_nfs.nfs4.rpc import Credentials
from volplane_nfs.nfs4.status import Status, name_of_status

__all__ = [
    "Address",
    "Client",
    "Compounds",
    "Credentials",
    "Dial",
    "NfsError",
    "NoAnswer",
    "NotAnNfsServer",
    "OutcomeUnknown",
    "ServerUnavailable",
    "Status",
    "Stream",
    "TransportError",
    "dial_tcp",
    "done",
    "name_of_status",
    "values_of",
]

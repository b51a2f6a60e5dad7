"""A small client of NFSv4 in user space: no mount, no privileges, nothing but the standard library.

    client = Client(Address("filer.example.com"))
    share = root_handle(client, (b"vol",))
    make_directory(client, share, b"new", 0o750)
    print(names(client, share))
    client.close()

It speaks 4.2 and 4.1 with sessions, and 4.0 where the server has no more (RFC 7862, RFC 8881, RFC 7530), over ONC RPC
with AUTH_SYS (RFC 5531), in TLS where `TlsDial` connects (RFC 9289). `volplane_nfs.nfs4.files` has directories,
attributes, symbolic links and small files, each a function of a client and the handle of a directory;
`volplane_nfs.nfs4.copying` copies files within the server; `volplane_nfs.nfs4.operations` has the operations of a
COMPOUND. A path is a tuple of names: every name is looked up by itself, and no symbolic link is followed.
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
from volplane_nfs.nfs4.tls import TlsDial

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
    "TlsDial",
    "TransportError",
    "dial_tcp",
    "done",
    "name_of_status",
    "values_of",
]

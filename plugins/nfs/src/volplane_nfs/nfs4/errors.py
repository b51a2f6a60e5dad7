"""What can go wrong between a client and a server."""

from __future__ import annotations

from volplane_nfs.nfs4.status import name_of_status


class NfsError(Exception):
    """The server refused an operation. status: its code. operation: name. index: of the operation in the COMPOUND,
    from 0; the ones before it were done.
    """

    def __init__(self, status: int, operation: str, index: int) -> None:
        super().__init__(f"{operation}: {name_of_status(status)}")
        self.status = status
        self.operation = operation
        self.index = index


class TransportError(Exception):
    """There is no answer to work with. Each subclass says whether the call may have been done."""


class ServerUnavailable(TransportError):
    """The server cannot be reached or does not serve now: nothing was done."""


class NoAnswer(TransportError):
    """The time is up, or the connection is lost for good: the call may have been done."""


class OutcomeUnknown(TransportError):
    """The server lost its memory of a call that was sent twice (it was restarted): the call may have been done. The
    connection works; look at what is there, and go on.
    """


class NotAnNfsServer(TransportError):
    """The answer is none of NFSv4: another service, cut or oversized data. Nothing of it was used."""

"""The backend `nfs` of volplane: volumes on any NFSv4 server, through a client of its own in user space."""

from volplane_nfs.backend import NfsBackend

__all__ = ["NfsBackend"]

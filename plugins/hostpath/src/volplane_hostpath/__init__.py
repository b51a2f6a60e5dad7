"""volplane backend `hostpath`: volumes as directories of one file system."""

from volplane_hostpath.backend import HostPathBackend

__all__ = ["HostPathBackend"]

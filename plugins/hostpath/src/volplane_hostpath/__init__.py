"""volplane backend `hostpath`: persistent volumes as directories of one file system.

`HostPathBackend` implements volplane's hooks with directories below a root that the operator sets; a marker file of
each volume names its owner. volplane loads it by its entry point; `volplane_hostpath.testing` has the driver as a
subject for the conformance suite. It imports only public names of `volplane`. Below the root it follows no symbolic
link and enters no other mount, and it never removes a directory of others.
"""

from volplane_hostpath.backend import HostPathBackend

__all__ = ["HostPathBackend"]

"""volplane backend `csi`: the volumes of any CSI driver, in the place of its sidecars.

`CsiBackend` calls the driver's controller service on a unix socket, as external-provisioner, external-attacher,
external-resizer and csi-snapshotter do; the driver's node plugin stays. volplane loads it by its entry point;
`volplane_csi.testing` has a strict driver to test against. What the driver answers is read as that of a stranger.
"""

from volplane_csi.backend import CsiBackend

__all__ = ["CsiBackend"]

"""The backend `gce_pd`: disks of Google Compute Engine, mounted by the node plugin of the official CSI driver.

See docs/reference/gce_pd.md.
"""

from volplane_gce_pd.backend import GcePdBackend

__all__ = ["GcePdBackend"]

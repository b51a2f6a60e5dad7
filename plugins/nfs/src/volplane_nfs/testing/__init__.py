"""Servers for tests: `ModelServer` in memory, and `GaneshaServer`, a real NFS-Ganesha of this machine.

    with GaneshaServer(directory) as server: NfsBackend({"shares": server.share})
    NfsBackend({"shares": "nfs://model/vol"}, dial=ModelServer().dial)

`subject`, `export_subject` and `ganesha_subject` are for `volplane check` and `volplane sim`; they need the extra
`testing`.
"""

from volplane_nfs.testing.ganesha import GaneshaServer, why_no_ganesha
from volplane_nfs.testing.model import Fault, ModelServer
from volplane_nfs.testing.subjects import export_subject, ganesha_subject, subject, subject_on

__all__ = [
    "Fault",
    "GaneshaServer",
    "ModelServer",
    "export_subject",
    "ganesha_subject",
    "subject",
    "subject_on",
    "why_no_ganesha",
]

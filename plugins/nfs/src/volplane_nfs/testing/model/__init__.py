"""A model of an NFSv4 server, in memory: what a real one does with the operations of the client, as far as tests need.

It speaks bytes: the client connects to it through `ModelServer.dial`, in process, or over TCP (`serve`). Its answers to
random sequences of operations are compared with those of NFS-Ganesha in tests/test_model.py.
"""

from volplane_nfs.testing.model.export_bus import DATA, ModelBus
from volplane_nfs.testing.model.server import Fault, ModelServer

__all__ = ["DATA", "Fault", "ModelBus", "ModelServer"]

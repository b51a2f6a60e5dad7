"""A mock of Compute Engine, as far as disks are concerned, with the semantics that tests of a storage driver need.

    fake = FakeCompute(Behaviour(default_seconds=1.0), clock=clock)
    with FakeComputeServer(fake) as server: ...    # over HTTP: the option endpoint, or api_endpoint of the clients
    GcePdBackend(options, connect_to=InProcess(fake), clock=clock)       # in process, in virtual time

Every request and answer is checked by Google's own message classes. It needs the testing kit of volplane, which the
extra `volplane-gce-pd[testing]` installs.
"""

try:
    import volplane_testing  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "volplane_testing":
        raise
    raise ModuleNotFoundError(
        'the mocked Compute Engine needs the testing kit of volplane: pip install "volplane-gce-pd[testing]"',
        name=error.name,
    ) from None

from volplane_gce_pd.testing.behaviour import COMPUTE_QUOTAS, MACHINE_TYPES, Behaviour, DiskRules
from volplane_gce_pd.testing.errors import ComputeError
from volplane_gce_pd.testing.fake import FakeCompute, FakeComputeServer
from volplane_gce_pd.testing.in_process import InProcess
from volplane_gce_pd.testing.methods import ModelViolation
from volplane_gce_pd.testing.records import DiskRecord, InstanceRecord, OperationRecord, SnapshotRecord
from volplane_gce_pd.testing.serving import serve
from volplane_gce_pd.testing.subjects import attaching_subject, subject

__all__ = [
    "COMPUTE_QUOTAS",
    "MACHINE_TYPES",
    "Behaviour",
    "ComputeError",
    "DiskRecord",
    "DiskRules",
    "FakeCompute",
    "FakeComputeServer",
    "InProcess",
    "InstanceRecord",
    "ModelViolation",
    "OperationRecord",
    "SnapshotRecord",
    "attaching_subject",
    "serve",
    "subject",
]

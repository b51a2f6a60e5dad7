"""A mock of EC2, as far as volumes are concerned, with the semantics that tests of a storage driver need.

    fake = FakeEC2(Behaviour(create_seconds=1.5), clock=clock)
    with FakeEC2Server(fake) as server: ...        # over HTTP: endpoint_url=server.url
    AwsEbsBackend(options, connect_to=InProcess(fake), clock=clock)      # in process, in virtual time

It needs the testing kit of volplane, which the extra `volplane-aws-ebs[testing]` installs. See
docs/how-to/test-against-a-mocked-ec2.md.
"""

try:
    import volplane_testing  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "volplane_testing":
        raise
    raise ModuleNotFoundError(
        'the mocked EC2 needs the testing kit of volplane: pip install "volplane-aws-ebs[testing]"', name=error.name
    ) from None


from volplane_aws_ebs.testing.behaviour import EC2_LIMITS, Behaviour, InstanceType, VolumeType
from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.in_process import InProcess, intercept
from volplane_aws_ebs.testing.query import ModelViolation
from volplane_aws_ebs.testing.server import FakeEC2Server
from volplane_aws_ebs.testing.serving import serve
from volplane_aws_ebs.testing.state import Attachment, Instance, Modification, Snapshot, Volume
from volplane_aws_ebs.testing.subjects import attaching_subject, subject
from volplane_testing.cloud import Fault, FaultKind, Rate, Reply, Script, SteppedClock

__all__ = [
    "EC2_LIMITS",
    "Attachment",
    "Behaviour",
    "EC2Error",
    "FakeEC2",
    "FakeEC2Server",
    "Fault",
    "FaultKind",
    "InProcess",
    "Instance",
    "InstanceType",
    "ModelViolation",
    "Modification",
    "Rate",
    "Reply",
    "Script",
    "Snapshot",
    "SteppedClock",
    "Volume",
    "VolumeType",
    "attaching_subject",
    "intercept",
    "serve",
    "subject",
]

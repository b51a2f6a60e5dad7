"""The mocked account over HTTP, for `volplane fake aws_ebs`: `volplane_aws_ebs.testing.serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from volplane_aws_ebs.backend import AwsEbsBackend
from volplane_aws_ebs.testing.fake import FakeEC2
from volplane_aws_ebs.testing.server import FakeEC2Server
from volplane_testing.cloud import ServedFake


@contextmanager
def serve(*, port: int = 0, disks: Path | None = None, instances: int = 1) -> Iterator[ServedFake]:
    """Serve an empty account with instances in the first zone on loopback until the block ends.

    port: 0 = any free one. disks: shows attached volumes as directories, for pods of `volplane dev --disks`. Raises
    OSError for a port or directory that cannot be had.
    """
    fake = FakeEC2()
    region, zone = fake.behaviour.region, fake.behaviour.zones[0]
    made = [fake.add_instance(zone).id for _ in range(instances)]
    with FakeEC2Server(fake, port=port, disks=disks) as server:
        yield ServedFake(
            url=server.url,
            driver=AwsEbsBackend.default_driver_name,
            options={"region": region, "endpoint": server.url, "sts_endpoint": server.url, "attach": True},
            instances={id_: f"aws:///{zone}/{id_}" for id_ in made},
            labels={"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region},
            hints=(
                "export AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any    (for the driver too)",
                f"aws ec2 describe-volumes --region {region} --endpoint-url {server.url}",
                f'boto3.client("ec2", region_name="{region}", endpoint_url="{server.url}")',
            ),
        )

"""The mocked project over HTTP, for `volplane fake gce_pd`: `volplane_gce_pd.testing.serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from volplane.errors import ConfigurationError
from volplane_gce_pd.backend import GcePdBackend
from volplane_gce_pd.testing.fake import FakeCompute, FakeComputeServer
from volplane_testing.cloud import ServedFake


@contextmanager
def serve(*, port: int = 0, disks: Path | None = None, instances: int = 1) -> Iterator[ServedFake]:
    """Serve an empty project with machines in the first zone on loopback until the block ends.

    port: 0 = any free one. Raises OSError for a port that cannot be had, ConfigurationError for `disks`, since this
    mock shows none to pods.
    """
    if disks is not None:
        raise ConfigurationError("--disks: the mocked Compute Engine shows no disks to pods; leave it out")
    fake = FakeCompute()
    project, region, zone = fake.behaviour.project, fake.behaviour.region, fake.behaviour.zones[0]
    names = [f"node-{number}" for number in range(1, instances + 1)]
    for name in names:
        fake.add_instance(name, zone)
    with FakeComputeServer(fake, port=port) as server:
        yield ServedFake(
            url=server.url,
            driver=GcePdBackend.default_driver_name,
            options={"project": project, "region": region, "endpoint": server.url, "attach": True},
            instances={name: f"gce://{project}/{zone}/{name}" for name in names},
            labels={"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region},
            hints=(
                f'compute_v1.DisksClient(credentials=..., client_options={{"api_endpoint": "{server.url}"}})',
                "the driver sends whatever Google credentials it finds; the mock takes any",
            ),
        )

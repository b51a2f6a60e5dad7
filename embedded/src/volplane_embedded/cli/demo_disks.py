"""The mocked cloud of the demo: EBS volumes of a FakeEC2 in this process, whose disks the nodes can use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from volplane.controller.config import DriverSettings
from volplane_embedded.cli.demo_storage import fakes_of

_DRIVER: Final = "ebs.volplane.dev"
_ZONE: Final = "eu-test-1a"
_SECONDS: Final = 0.3
"""That each change of a volume takes."""


class NotInstalled(Exception):
    """What the cloud needs is not on this machine; the message says what."""


@dataclass(frozen=True, slots=True)
class DemoCloud:
    """A mocked region. driver: settings of the driver that makes volumes in it. disks: where its disks show."""

    driver: DriverSettings
    disks: Path
    _fake: Any

    def add_machine(self) -> tuple[str, Mapping[str, Any]]:
        """Add an instance. Returns its id, and the merge patch that makes a Node that instance."""
        instance = self._fake.add_instance(_ZONE)
        labels = {"topology.kubernetes.io/zone": _ZONE}
        return instance.id, {"spec": {"providerID": f"aws:///{_ZONE}/{instance.id}"}, "metadata": {"labels": labels}}

    def snapshots(self) -> list[str]:
        """Ids of all snapshots, as the cloud says it."""
        return list(self._fake.snapshots)

    def attached(self) -> Mapping[str, tuple[str, ...]]:
        """Id of every volume -> ids of the instances that have it, as the cloud says it."""
        return {volume: tuple(instances) for volume, instances in self._fake.attached().items()}


@contextmanager
def demo_cloud(directory: Path) -> Iterator[DemoCloud]:
    """Return the cloud, for as long as the block runs. directory: an empty one. Raises NotInstalled."""
    try:
        ec2 = fakes_of("aws_ebs")
    except ModuleNotFoundError as error:
        raise NotInstalled(f'{error}: pip install "volplane[aws-ebs,testing]"') from None
    waits = {f"{what}_seconds": _SECONDS for what in ("create", "attach", "detach", "delete", "snapshot")}
    key = directory / "any-key"
    key.write_text("any")
    with ec2.FakeEC2Server(ec2.FakeEC2(ec2.Behaviour(**waits)), disks=directory / "disks") as server:
        options = {
            "region": "eu-test-1",
            "endpoint": server.url,
            "attach": True,
            "access_key_id": f"file:{key}",
            "secret_access_key": f"file:{key}",
        }
        driver = DriverSettings(name=_DRIVER, backend="aws_ebs", options=options, where="the demo's cloud")
        yield DemoCloud(driver, directory / "disks", server.fake)

"""A mocked storage that is served to other processes: what `volplane fake BACKEND` starts.

The module that the entry point of the group `volplane.fakes` names may have a function `serve`:

    def serve(*, port: int, disks: Path | None, instances: int) -> AbstractContextManager[ServedFake]

port: to listen on, 0 = any free one. disks: where to show disks to pods of `volplane dev --disks`; ConfigurationError
if the mock has none to show. instances: how many machines there are to attach to. It serves until the block ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ServedFake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFake:
    """What to tell people of a mocked storage that is served now.

    url: where it is served. options: of a driver that is to use it. driver: its name. instances: id -> what stands in
    `spec.providerID` of a node that is this machine. labels: of all these nodes, such as the zone of the machines, by
    which the scheduler finds nodes for volumes. hints: how other programs use it, a line each.
    """

    url: str
    driver: str
    options: Mapping[str, object]
    instances: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()

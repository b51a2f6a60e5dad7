"""What is used of volumes that have a project: the kernel keeps count of it, so that no tree is walked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from volplane import Context
from volplane.directory import CorruptMarker, Reports, Usage, UsageReport
from volplane_hostpath.index import read_volume_marker, volume_names
from volplane_hostpath.root import Root


def measure_volumes(root: Root, report: UsageReport, problems: Reports, context: Context) -> None:
    """Measure some volumes for the metrics. An error of that is told once, and stops nothing."""

    def measure(names: Sequence[str]) -> dict[str, Usage]:
        found: dict[str, Usage] = {}
        for name in names:
            with suppress(CorruptMarker):  # It is reported where markers are needed.
                marker = read_volume_marker(root, name)
                if marker is not None and marker.project is not None:
                    found[marker.name] = Usage(*root.quotas.used(root.fd, marker.project))
        return found

    try:
        report.work(context.driver, root.path, lambda: volume_names(root), measure)
    except OSError as error:
        problems.warn(context.log, f"measuring the volumes on root {root.path}", error)

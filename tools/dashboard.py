"""Writes deploy/monitoring/dashboard.json, a dashboard of Grafana, from the table below.

`python -m tools.dashboard` writes it, with `--check` it only says whether the file is what the table gives.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["DASHBOARD", "ROWS", "Panel", "dashboard"]

DASHBOARD: Final = Path(__file__).resolve().parents[1] / "deploy" / "monitoring" / "dashboard.json"
WIDTH: Final = 24
"""Columns of Grafana's grid."""
HEIGHT: Final = 7
"""Rows of the grid that a panel takes."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. queries: legend (with labels in braces) to PromQL. unit: of Grafana. kind: timeseries or stat."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    text: str = ""


def _quantiles(metric: str, *labels: str) -> dict[str, str]:
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    by = ", ".join(("le", *labels))
    return {
        f"p{share} {legend}": f"histogram_quantile(0.{share}, sum by ({by}) (rate({metric}_bucket[5m])))"
        for share in (50, 99)
    }


ROWS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "Now": (
        Panel(
            "Replicas that lead", {"leading": "sum(volplane_leading)"}, kind="stat", text="One, or work stands still."
        ),
        Panel(
            "Drivers that cannot be used", {"{{driver}}": "max by (driver) (volplane_driver_healthy) == 0"}, kind="stat"
        ),
        Panel("Claims that are not bound", {"claims": "sum(pv_collector_unbound_pvc_count) or vector(0)"}, kind="stat"),
        Panel(
            "What the last leak check found",
            {"{{verdict}} {{driver}}": 'max by (driver, verdict) (volplane_leak_findings{verdict!="foreign"}) > 0'},
            kind="stat",
            text="orphan: storage without a volume. ghost: a volume without storage. drifted: they differ.",
        ),
    ),
    "Volumes": (
        Panel(
            "Bound volumes",
            {"{{storage_class}}": "sum by (storage_class) (pv_collector_bound_pv_count)"},
        ),
        Panel(
            "From the first attempt to bound or gone",
            _quantiles("volume_operation_total_seconds", "operation_name"),
            unit="s",
        ),
        Panel(
            "Volumes made and deleted",
            {
                "made {{class}}": "sum by (class) (rate(controller_persistentvolumeclaim_provision_total[5m]))",
                "deleted {{class}}": "sum by (class) (rate(controller_persistentvolume_delete_total[5m]))",
            },
            unit="ops",
        ),
    ),
    "Backends": (
        Panel(
            "Calls of hooks that fail",
            {
                "{{driver}} {{hook}} {{result}}": "sum by (driver, hook, result) "
                '(rate(volplane_hook_calls_total{result!~"ok|in_progress"}[5m])) > 0'
            },
            unit="ops",
        ),
        Panel("How long hooks take", _quantiles("volplane_hook_seconds", "driver", "hook"), unit="s"),
        Panel(
            "Operations now",
            {"{{driver}} {{operation}} {{phase}}": "sum by (driver, operation, phase) (volplane_operations) > 0"},
            text="overrun: past the deadline, and the hook has not returned.",
        ),
    ),
    "Attachments": (
        Panel(
            "Volumes on nodes",
            {"{{plugin_name}} {{state}}": "sum by (plugin_name, state) (attachdetach_controller_total_volumes)"},
        ),
        Panel(
            "Detached by force",
            {"{{reason}}": "sum by (reason) (attach_detach_controller_attachdetach_controller_forced_detaches)"},
        ),
    ),
    "Controllers": (
        Panel("Keys that wait", {"{{name}}": "max by (name) (workqueue_depth)"}),
        Panel("Time in the queue", _quantiles("workqueue_queue_duration_seconds", "name"), unit="s"),
        Panel(
            "Requests to the API server",
            {"{{method}} {{code}}": "sum by (method, code) (rate(rest_client_requests_total[5m]))"},
            unit="reqps",
        ),
        Panel(
            "Watches that ended",
            {"{{resource}} {{why}}": "sum by (resource, why) (increase(volplane_reflector_watch_ends_total[5m])) > 0"},
        ),
    ),
}


def _panels() -> Iterator[dict[str, Any]]:
    top = number = 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        width = WIDTH // len(panels)
        for position, panel in enumerate(panels):
            number += 1
            yield {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.text,
                "datasource": _SOURCE,
                "gridPos": {"x": position * width, "y": top + 1, "w": width, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
                    for index, (legend, query) in enumerate(panel.queries.items())
                ],
            }
        top += HEIGHT + 1


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it. Its data source is chosen when it is imported or looked at."""
    return {
        "title": "volplane",
        "uid": "volplane",
        "tags": ["storage"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": list(_panels()),
    }


def _text(board: Mapping[str, Any]) -> str:
    """Return the JSON, with a line for each panel."""
    panels = ",\n".join(f"    {json.dumps(panel)}" for panel in board["panels"])
    others = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in board.items() if key != "panels"]
    return "{\n" + ",\n".join((*others, f'  "panels": [\n{panels}\n  ]')) + "\n}\n"


def main() -> int:
    """Write the file, or with `--check` compare it; 1 if it differs."""
    text = _text(dashboard())
    if "--check" in sys.argv[1:]:
        return int(not DASHBOARD.exists() or DASHBOARD.read_text("utf-8") != text)
    DASHBOARD.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

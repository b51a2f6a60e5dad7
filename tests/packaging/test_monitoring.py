"""What operators give to Prometheus and Grafana names metrics that exist, and each alert has its page."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.dashboard import DASHBOARD, dashboard
from tools.reference_products import metrics_page

REPOSITORY = Path(__file__).resolve().parents[2]
MONITORING = REPOSITORY / "deploy" / "monitoring"
RUNBOOK = (REPOSITORY / "docs" / "how-to" / "answer-alerts.md").read_text("utf-8")
[GROUP] = yaml.safe_load((MONITORING / "alerts.yaml").read_text("utf-8"))["groups"]
ALERTS: list[dict[str, Any]] = GROUP["rules"]
PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
QUERIES = [
    *(alert["expr"] for alert in ALERTS),
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
]
WORDS = {"sum", "max", "by", "rate", "increase", "delta", "time", "absent", "or", "le", "histogram_quantile", "vector"}
PROMTOOL = shutil.which("promtool")


@functools.cache
def metrics_and_labels() -> dict[str, set[str]]:
    """Metrics and their labels as the reference has them."""
    rows = re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", "\n".join(metrics_page()), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def names_in(query: str) -> list[str]:
    """The metrics and labels of a query."""
    without_text = re.sub(r'"[^"]*"|\[\w+\]|\b[\d.]+\b', "", query)
    return [word for word in re.findall(r"[A-Za-z_]\w*", without_text) if word not in WORDS]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_only_metrics_and_labels_that_exist(query: str) -> None:
    found = [word.removesuffix("_bucket") for word in names_in(query)]
    metrics = [word for word in found if word in metrics_and_labels()]
    assert metrics
    assert set(found) - set(metrics) <= set.union(*(metrics_and_labels()[metric] for metric in metrics))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_has_a_section_that_says_what_to_do(alert: dict[str, Any]) -> None:
    assert f"\n## {alert['alert']}\n" in RUNBOOK
    assert alert["annotations"]["runbook"] == f"answer-alerts.md#{alert['alert'].lower()}"
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}


def test_no_section_is_about_an_alert_that_is_gone() -> None:
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_the_dashboard_is_what_its_table_gives() -> None:
    assert json.loads(DASHBOARD.read_text("utf-8")) == dashboard()


def test_every_panel_has_its_place() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert max(x for x, _ in taken) < 24


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)")
@pytest.mark.parametrize("what", [("check", "alerts.yaml"), ("test", "alerts-tests.yaml")], ids="-".join)
def test_prometheus_takes_the_alerts_and_each_fires_when_it_should(what: tuple[str, str]) -> None:
    verb, file = what
    told = subprocess.run(
        [PROMTOOL or "promtool", verb, "rules", file],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0, told.stdout + told.stderr

"""Write what the chart takes from the code: templates, schema, versions.

python -m tools.chart              write it
python -m tools.chart --check      write nothing; exit 1 if a file is not what the code says (a test runs this)
python -m tools.chart --render     also render deploy/renderings with the `helm` of the PATH
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from collections.abc import Sequence

from tools.chart.renderings import CHART, ROOT, render_all
from tools.chart.templates import templates
from tools.chart.values import schema


def main(arguments: Sequence[str]) -> int:
    """Write or check; the exit code."""
    files = {f"templates/{name}": text for name, text in templates().items()}
    files["values.schema.json"] = json.dumps(schema(), indent=1) + "\n"
    files["Chart.yaml"] = _chart()
    stale = []
    for name, text in files.items():
        path = CHART / name
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
    if stale:
        said = "not as the code is, `make chart` mends it: " if "--check" in arguments else "written: "
        print(said + ", ".join(stale))
    if "--render" in arguments:
        if shutil.which("helm") is None:
            print("--render needs helm 3 or 4 on the PATH", file=sys.stderr)
            return 1
        render_all()
    return int(bool(stale) and "--check" in arguments)


def _chart() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return "\n".join(
        (
            "# Written by tools/chart; the version is that of the distributions.",
            "apiVersion: v2",
            f"name: {project['name']}",
            f"description: {json.dumps(project['description'])}",
            "type: application",
            f"version: {project['version']}",
            f'appVersion: "{project["version"]}"',
            'kubeVersion: ">=1.29.0-0"',
            "",
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

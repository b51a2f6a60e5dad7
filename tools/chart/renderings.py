"""deploy/renderings: the chart rendered by helm for some values, so that tests can judge it where there is no helm.

NAME.values.yaml is given to helm; NAME.yaml is what it rendered, or NAME.refused.txt what it said instead. Each begins
with a digest of the values and the chart: a rendering of other ones is stale.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["CHART", "RENDERINGS", "ROOT", "cases", "digest", "render_all"]

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "chart"
RENDERINGS: Final = ROOT / "deploy" / "renderings"
NAMESPACE: Final = "volplane-system"


def cases() -> Iterator[tuple[str, Path]]:
    """(name, file with values)."""
    for path in sorted(RENDERINGS.glob("*.values.yaml")):
        yield path.name.removesuffix(".values.yaml"), path


def digest(values: Path) -> str:
    """First line of a rendering of these values by this chart."""
    inputs = hashlib.sha256()
    read = sorted(path for path in CHART.rglob("*") if path.is_file() and path.suffix != ".md")
    for path in (values, *read):
        content = path.read_bytes()
        inputs.update(f"{path.name} {len(content)}\n".encode() + content)
    return f"# of chart and values {inputs.hexdigest()}\n"


def render_all() -> None:
    """Render every case with `helm`, which must be on the PATH."""
    for name, values in cases():
        command = ["helm", "template", "volplane", str(CHART), "--namespace", NAMESPACE, "--values", str(values)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        rendered, refused = RENDERINGS / f"{name}.yaml", RENDERINGS / f"{name}.refused.txt"
        rendered.unlink(missing_ok=True)
        refused.unlink(missing_ok=True)
        if ended.returncode == 0:
            rendered.write_text(digest(values) + ended.stdout, "utf-8")
        else:
            said = ended.stderr.replace(str(CHART), "deploy/chart")
            refused.write_text(digest(values) + said, "utf-8")
        print(f"{name}: {'rendered' if ended.returncode == 0 else 'refused'}")

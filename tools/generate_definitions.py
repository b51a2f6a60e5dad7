"""Write the CustomResourceDefinitions that the embedded API server begins with: those of external-snapshotter.

Run `python -m tools.generate_definitions DIRECTORY` at the root of the repository, with the directory
`client/config/crd` of a checkout of external-snapshotter; the file it writes is checked in. It holds names, types and
rules of the version v1 of each; texts are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

_TARGET: Final = Path(__file__).parent.parent / "embedded" / "src" / "volplane_embedded" / "apiserver" / "data"


def definitions(directory: Path) -> list[dict[str, Any]]:
    """Return the definitions in the files of a directory, reduced to what is served."""
    found = []
    for path in sorted(directory.glob("*snapshot*.yaml")):
        whole = yaml.safe_load(path.read_text("utf-8"))
        spec = whole["spec"]
        spec = {key: spec[key] for key in ("group", "names", "scope", "versions")}
        spec["versions"] = [_without_texts(each) for each in spec["versions"] if each["name"] == "v1"]
        for version in spec["versions"]:
            version["storage"] = True
            for name in ("apiVersion", "kind", "metadata"):
                del version["schema"]["openAPIV3Schema"]["properties"][name]
        found.append({"metadata": {"name": whole["metadata"]["name"]}, "spec": spec})
    return found


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_texts(each) for key, each in value.items() if key not in ("description", "example")}
    return [_without_texts(each) for each in value] if isinstance(value, list) else value


def main(directory: str) -> None:
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in definitions(Path(directory)))
    (_TARGET / "definitions.json").write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

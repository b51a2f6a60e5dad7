"""Complete the pages of the site that describe public names, from the code: an extension of Sphinx.

The repository has the beginning of each page; the rest is made when the site is built, and is not kept.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from sphinx.application import Sphinx
from tools.reference_contract import errors_page, hooks_page, names_of_errors, names_of_hooks
from tools.reference_definitions import Index
from tools.reference_delays import delays_page
from tools.reference_kit import KITS, conformance_page, kit_page, names_of_kits
from tools.reference_products import backend_page, commands_page, extensions_page, metrics_page

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = {"csi": "csi_backend.md"}
"""Pages whose name is not that of the backend: csi.md is about `volplane csi`."""


@functools.cache
def pages() -> Mapping[str, str]:
    """Return the Markdown of each page that the code completes, by its path below docs/."""
    contract = {"hooks.md": names_of_hooks(), "errors.md": names_of_errors()}
    index = Index(contract | names_of_kits([name for names in contract.values() for name in names]))
    made = {"hooks.md": hooks_page(index), "errors.md": errors_page(), "commands.md": commands_page()}
    made |= {
        "conformance.md": conformance_page(index),
        "metrics.md": metrics_page(),
        "extensions.md": extensions_page(),
    }
    made |= {page: kit_page(page, index) for page in KITS}
    for name in sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")):
        made[BACKENDS.get(name, f"{name}.md")] = backend_page(name)
    made["../explanation/delays.md"] = delays_page()
    texts = {name: re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n" for name, lines in made.items()}
    return {name.removeprefix("../") if "/" in name else f"reference/{name}": text for name, text in texts.items()}


def setup(app: Sphinx) -> None:
    """Let Sphinx read the pages from the code. The files in docs/ are for readers of the repository."""
    app.connect("source-read", _complete)


def _complete(_app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = pages().get(f"{name}.md", source[0])

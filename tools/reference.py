"""Write the generated pages of docs/ from the code they describe.

python -m tools.reference            write them
python -m tools.reference --check    write nothing; exit 1 if a page is not what the code says (a test runs this)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.reference_contract import errors_page, hooks_page, names_of_errors, names_of_hooks
from tools.reference_definitions import Index
from tools.reference_delays import delays_page
from tools.reference_kit import KITS, conformance_page, kit_page, names_of_kits
from tools.reference_products import backend_page, commands_page, extensions_page, metrics_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"


def main(arguments: Sequence[str]) -> int:
    """Write or check every page; the exit code."""
    contract = {"hooks.md": names_of_hooks(), "errors.md": names_of_errors()}
    index = Index(contract | names_of_kits([name for names in contract.values() for name in names]))
    pages = {"hooks.md": hooks_page(index), "errors.md": errors_page(), "commands.md": commands_page()}
    pages |= {
        "conformance.md": conformance_page(index),
        "metrics.md": metrics_page(),
        "extensions.md": extensions_page(),
    }
    pages |= {page: kit_page(page, index) for page in KITS}
    for name in sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")):
        pages[f"{name}.md"] = backend_page(name)
    pages["../explanation/delays.md"] = delays_page()
    stale = []
    for name, lines in pages.items():
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"
        page = PAGES / name
        if page.is_file() and page.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            page.write_text(text, "utf-8")
    if stale:
        print(
            ("not as the code is, `make docs` mends it: " if "--check" in arguments else "written: ") + ", ".join(stale)
        )
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

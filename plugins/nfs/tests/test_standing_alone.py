"""The NFSv4 client as a package that stands alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import volplane_nfs.nfs4

IMPORTS = """
import importlib, pkgutil, sys, types
package = types.ModuleType("volplane_nfs")
package.__path__ = [{above!r}]
sys.modules["volplane_nfs"] = package
import volplane_nfs.nfs4
for module in pkgutil.walk_packages(volplane_nfs.nfs4.__path__, "volplane_nfs.nfs4."):
    importlib.import_module(module.name)
others = {{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names
print(sorted(others - {{"__main__"}}))
print(sorted(name for name in sys.modules if name.startswith("volplane_nfs") and ".nfs4" not in name))
"""


def test_the_client_imports_nothing_but_itself_and_the_standard_library() -> None:
    """Without `site`, which may import packages for itself; the rest of the driver cannot be imported by accident."""
    above = str(Path(volplane_nfs.nfs4.__file__).parents[1])
    script = IMPORTS.format(above=above)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["['volplane_nfs']", "['volplane_nfs']"]

"""What everybody imports must not cost what only some need: pytest loads our plugin in every run."""

from __future__ import annotations

import subprocess
import sys

import pytest

import volplane_testing


def loaded(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(ran.stdout.split())


def test_the_package_of_authors_loads_no_loop_and_no_client() -> None:
    assert not loaded("import volplane") & {"asyncio", "aiohttp", "kubernetes", "msgspec", "volplane.kube", "typer"}


def test_the_pytest_plugin_loads_nothing_of_the_kit() -> None:
    before, after = loaded("import pytest"), loaded("import volplane_testing.pytest_plugin")
    ours = {name for name in after if name.split(".")[0].startswith("volplane")}
    assert ours == {"volplane_testing", "volplane_testing.pytest_plugin"}
    assert not (after - before) & {"asyncio", "aiohttp", "kubernetes", "msgspec"}


def test_rules_can_be_run_without_pytest() -> None:
    assert "pytest" not in loaded("from volplane_testing import *")


def test_the_kit_knows_its_names_and_no_others() -> None:
    for name in volplane_testing.__all__:
        assert getattr(volplane_testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Clutser'"):
        volplane_testing.Clutser  # noqa: B018

"""What the documentation names exists: modules and what is in them, files, commands."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
from typer.main import get_command

from volplane.cli import main as cli

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted(REPOSITORY.glob("docs/**/*.md")),
    *sorted(REPOSITORY.glob("*/README.md")),
    *sorted(REPOSITORY.glob("plugins/*/README.md")),
    *sorted(REPOSITORY.glob("examples/*/README.md")),
]
FOLDERS = sorted(path.name for path in REPOSITORY.iterdir() if path.is_dir() and not path.name.startswith("."))
ROOMS = sorted(path.name for path in (REPOSITORY / "core" / "volplane").iterdir() if (path / "__init__.py").is_file())
NOT_MODULES = re.compile(
    r"volplane\.(dev|kubeconfig|yaml)\b"  # names of objects in Kubernetes, files
    r"|volplane\.backend$"  # a logger
    r"|volplane\.(backends|extensions|commands|fakes)$"  # groups of entry points
    r"|volplane_(folders|loopfiles|shelf|cumulus(_snapshots)?)\b"  # written by the reader
)

everywhere = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def exists(dotted: str) -> bool:
    """Whether it is a module, or leads from one by attributes."""
    module, *attributes = dotted.split(".")
    found: object = importlib.import_module(module)
    for name in attributes:
        if not hasattr(found, name) and importlib.util.find_spec(module) and hasattr(found, "__path__"):
            if importlib.util.find_spec(f"{module}.{name}") is None:
                return False
            module = f"{module}.{name}"
            found = importlib.import_module(module)
        elif hasattr(found, name):
            found = getattr(found, name)
            module = f"{module}.{name}"
        else:
            return name in getattr(found, "__annotations__", {})
    return True


def code(page: Path) -> list[str]:
    """What stands in backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL))


@everywhere
def test_every_dotted_name_leads_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    names = set(re.findall(r"(?<![\w./-])volplane(?:_[a-z]+)*(?:\.[A-Za-z_]\w*)+(?![\w/-])", text))
    short = {span for span in code(page) if re.fullmatch(rf"(?:{'|'.join(ROOMS)})(?:\.[A-Za-z_]\w*)+", span)}
    wanted = sorted(name for name in names if not NOT_MODULES.match(name)) + sorted(
        f"volplane.{name}" for name in short
    )
    assert [name for name in wanted if not exists(name)] == []


@everywhere
def test_every_path_leads_somewhere(page: Path) -> None:
    paths = [span for span in code(page) if re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*", span)]
    assert [path for path in paths if not path.startswith("build/") and not (REPOSITORY / path).exists()] == []


@everywhere
def test_every_command_exists(page: Path) -> None:
    named = re.findall(r"(?:`|^\$ (?:\.venv/bin/)?)volplane ([a-z][a-z-]*)", page.read_text("utf-8"), re.MULTILINE)
    commands = get_command(cli.application([])).commands  # type: ignore[attr-defined]
    assert [name for name in named if name not in commands] == []

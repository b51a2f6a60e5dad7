"""Counts of the core's code: lines, functions, reads of roles, results of several types, places of a controller."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Module", "core_modules", "guards", "mixed_results", "places_of_controllers", "role_reads"]

KITS: Final = ("cloud", "directory", "snapshots", "trash", "csi", "ui", "asking")
"""Rooms that are counted apart, each with its command `cli/NAME.py`: kits for authors of backends, and what the core
had not when it was given its bound (snapshots, copies and trash; CSI; the page, and asking the leader from anywhere).
"""
WIRING: Final = frozenset({"process", "roles", "assembly.py", "controlplane.py"})
"""Rooms that may read roles; the last two are their names before the rooms were moved."""
ROLE_NAMES: Final = frozenset({"settings", "_settings", "role", "_role"})
NOT_ROLES: Final = frozenset(
    {"namespace", "cluster_id", "lease", "scrub", "force_detach", "force_detach_after", "external_choice", "race"}
)
"""Fields of Role that say where a process is or how it works, not what it is for."""
DATA_ROOMS: Final = frozenset({"intents", "leaks", "roles"})
"""Rooms whose branches guard data, beside those of the duties."""
COMMON: Final = frozenset({"claims", "volumes", "capacity"})
"""Queues whose names are fields of objects too, so that a text says nothing."""
RESOURCES: Final = frozenset({"Kind", "Rule"})
"""Calls that name resources of the API, of which some are named like a queue."""
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the core. path: below core/volplane."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Return the package below `volplane`, or the name of a module of the root."""
        return self.path.parts[0]

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Return every function, methods and inner ones included."""
        return [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS)]


def core_modules(root: Path, *, kits: bool = False) -> list[Module]:
    """Return the files of the core, or of its kits alone."""
    core = root / "core" / "volplane"
    paths = [path.relative_to(core) for path in sorted(core.rglob("*.py"))]
    commands = [Path("cli", f"{kit}.py") for kit in KITS]
    chosen = [path for path in paths if (path.parts[0] in KITS or path in commands) == kits]
    texts = {path: (core / path).read_text("utf-8") for path in chosen}
    return [Module(path, text, ast.parse(text)) for path, text in texts.items()]


def role_reads(modules: list[Module]) -> list[str]:
    """Return `file:line field` of every read of a field of the role outside the assembly and roles/.

    The function of a duty that makes its controllers for a role, in its `__init__`, belongs to the assembly.
    """
    fields = {"runs", *_fields_of_role(modules)} - NOT_ROLES
    return [
        f"{module.path}:{node.lineno} {node.attr}"
        for module in modules
        if module.room not in WIRING
        for node in ast.walk(module.tree)
        if node not in _assembling(module)
        if isinstance(node, ast.Attribute) and node.attr in fields and _name(node.value) in ROLE_NAMES
    ]


def _assembling(module: Module) -> set[ast.AST]:
    """Return the nodes of the functions of a package's `__init__` that are given the role."""
    if module.path.name != "__init__.py":
        return set()
    given = (each for each in module.functions if any(arg.arg == "role" for arg in each.args.args))
    return {node for function in given for node in ast.walk(function)}


def _fields_of_role(modules: list[Module]) -> Iterator[str]:
    """Yield the fields of class Role, which was called Settings."""
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name in ("Role", "Settings"):
                yield from (_name(each.target) for each in node.body if isinstance(each, ast.AnnAssign))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def mixed_results(modules: list[Module]) -> list[str]:
    """Return `file:line function -> types` of every function whose result has two types or more besides None."""
    found = []
    for module in modules:
        for function in module.functions:
            kinds = [each for each in _members(function.returns) if each != "None"]
            if len(kinds) > 1:
                found.append(f"{module.path}:{function.lineno} {function.name} -> {' | '.join(kinds)}")
    return found


def _members(annotation: ast.expr | None) -> list[str]:
    if isinstance(annotation, ast.BinOp):
        return [*_members(annotation.left), *_members(annotation.right)]
    return [ast.unparse(annotation)] if annotation is not None else []


def places_of_controllers(modules: list[Module]) -> dict[str, list[str]]:
    """Return, by queue, its package and the files elsewhere that import its Duty or have its name as a text."""
    places = {}
    for module in modules:
        duties = {
            _name(node.target) for node in module.tree.body if isinstance(node, ast.AnnAssign) and _makes(node, "Duty")
        }
        others = [each for each in modules if each.room != module.room]
        for queue in sorted(set(_given(module.tree, "Controller", "queue")) - COMMON):
            named = [str(each.path) for each in others if queue in _texts(each) or duties & _imported(each)]
            places[queue] = [module.room, *named]
    return places


def _makes(node: ast.AnnAssign, name: str) -> bool:
    return isinstance(node.value, ast.Call) and _name(node.value.func) == name


def _given(tree: ast.AST, function: str, keyword: str) -> Iterator[str]:
    """Yield the texts that calls of a function are given by this keyword."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == function:
            values = [each.value for each in node.keywords if each.arg == keyword]
            yield from (str(value.value) for value in values if isinstance(value, ast.Constant))


def _texts(module: Module) -> set[str]:
    """Return the texts of a module without those that name an API resource, as in a Rule or an APIResource."""
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and _name(node.func) in RESOURCES]
    apart = {id(each) for call in calls for each in ast.walk(call)}
    texts = (each for each in ast.walk(module.tree) if isinstance(each, ast.Constant) and id(each) not in apart)
    return {each.value for each in texts if isinstance(each.value, str)}


def _imported(module: Module) -> set[str]:
    return {name.name for node in module.tree.body if isinstance(node, ast.ImportFrom) for name in node.names}


def guards(modules: list[Module], seed: int, many: int = 50) -> list[str]:
    """Return a sample of branches that guard data: an `if` of a duty that ends in return, raise or continue."""
    duties = {
        module.room
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.AnnAssign) and _makes(node, "Duty")
    }
    found = [
        f"core/volplane/{module.path}:{node.lineno}  if {ast.unparse(node.test)}"
        for module in modules
        if module.room in duties | DATA_ROOMS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
    ]
    return sorted(random.Random(seed).sample(found, min(many, len(found))))

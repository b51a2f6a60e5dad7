"""Public names: listed, there, documented. That lists are sorted is checked by ruff."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import volplane

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = [
    REPOSITORY / "core",
    REPOSITORY / "embedded" / "src",
    REPOSITORY / "testing" / "src",
    *sorted(REPOSITORY.glob("plugins/*/src")),
]
MODULES = {
    ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
    for root in ROOTS
    for path in sorted(root.rglob("*.py"))
    if path.name != "__main__.py"
}
FOR_AUTHORS = (
    "volplane.assets",
    "volplane.errors",
    "volplane.requests",
    "volplane.hookspecs",
    "volplane.requests",
    "volplane.schemas",
    "volplane.secret",
    "volplane_testing",
    "volplane_",
)
DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
CONTRACT = FOR_AUTHORS[:7]
KITS = ("volplane.cloud", "volplane.directory")
PUBLIC = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text("utf-8"))


def exported(module: ast.Module) -> list[str] | None:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and [ast.unparse(name) for name in statement.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(statement.value)
            return names
    return None


def defined(module: ast.Module) -> Iterator[str]:
    """Public classes and functions of a module."""
    for statement in module.body:
        if isinstance(statement, DEFINITIONS) and not statement.name.startswith("_"):
            yield statement.name


def test_modules_with_public_names_list_them() -> None:
    """Inside of core, of the embedded cluster and of plugins, an underscore says what is private to a module."""
    for_others = [name for name in MODULES if name in PUBLIC or name.startswith(("volplane_testing", *KITS))]
    without = [name for name in for_others if exported(parsed(name)) is None]
    assert {name: names for name in without if (names := list(defined(parsed(name))))} == {}


def test_what_a_module_exports_exists_and_is_named_once() -> None:
    lists = {name: names for name in MODULES if (names := exported(parsed(name))) is not None}
    assert [name for name, names in lists.items() if len(set(names)) < len(names)] == []
    assert [
        f"{name}.{each}"
        for name, names in lists.items()
        for each in names
        if not hasattr(importlib.import_module(name), each)
    ] == []


def test_every_exported_class_and_function_for_authors_says_what_it_promises() -> None:
    assert [
        f"{name}.{statement.name}"
        for name in MODULES
        if name.startswith(FOR_AUTHORS) and not name.startswith("volplane_embedded")
        for statement in parsed(name).body
        if isinstance(statement, DEFINITIONS)
        if statement.name in (exported(parsed(name)) or []) or (name in CONTRACT and not statement.name.startswith("_"))
        if not ast.get_docstring(statement)
    ] == []


def test_every_module_with_code_says_what_it_is_about() -> None:
    assert [name for name in MODULES if parsed(name).body and not ast.get_docstring(parsed(name))] == []


def test_authors_find_every_name_of_the_contract_in_the_package() -> None:
    ours_alone = {
        "ApiConflict",
        "ApiError",
        "ApiForbidden",
        "ApiGone",
        "ApiNotFound",
        "ApiUnavailable",
        "BackoffError",
        "ConfigurationError",
        "OperationError",
        "OperationInProgress",
        "OutcomeUnknown",
        "PluginError",
        "RetryPolicy",
        "SecretPlace",
    }
    contract = {each for name in CONTRACT for each in (*defined(parsed(name)), *(exported(parsed(name)) or ()))}
    assert contract - ours_alone <= set(volplane.__all__)
    values = {"Segment", "hookimpl"}
    assert set(volplane.__all__) - values <= contract - ours_alone


def test_every_hook_says_what_it_promises() -> None:
    hooks = [
        member
        for name, member in vars(volplane.BackendSpec).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    assert len(hooks) > 10
    assert [hook.__name__ for hook in hooks if not (hook.__doc__ or "").strip().endswith(".")] == []

"""Write the generated pages of docs/reference from the code they describe.

python tools/reference.py            write them
python tools/reference.py --check    write nothing; exit 1 if a page is not what the code says (a test runs this)
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path

import typer.main
import typer.testing

import volplane
from volplane import errors, testing
from volplane.cli import main as frame
from volplane.controller.metrics import Metrics
from volplane.hookspecs import REQUIRED_HOOKS, BackendSpec
from volplane.loading.building import build_driver, options_schema
from volplane.loading.discovery import InstalledPlugins
from volplane.loading.reference import markdown
from volplane.testing.conformance import RULES, Subject

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
MARK = "<!-- Written by tools/reference.py from the code; change it there, then `make docs`. -->"
WIDTH = 100
BAR = "\\|"

Hook = Callable[..., object]


def main(arguments: Sequence[str]) -> int:
    """Write or check every page; the exit code."""
    pages = {"hooks.md": hooks_page(), "errors.md": errors_page(), "commands.md": commands_page()}
    pages |= {"conformance.md": conformance_page(), "metrics.md": metrics_page()}
    pages |= {"testing.md": kit_page(), "extensions.md": extensions_page()}
    for name in sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")):
        pages[f"{name}.md"] = backend_page(name)
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


# --- hooks ------------------------------------------------------------------------------------------------------

SHARED = ("Context", "ClaimIdentity", "VolumeIdentity", "NodeIdentity", "Ownership", "VolumeSource")
NESTED = ("ListedAsset", "ParameterSchema", "Parameter")


def hooks_page() -> Iterator[str]:
    """Every hook with its request and its results."""
    hooks = [(name, member) for name, member in vars(BackendSpec).items() if is_hook(name, member)]
    yield "# Hooks\n"
    yield MARK + "\n"
    yield contract(inspect.getmodule(BackendSpec)) + "\n"
    yield """\
Raise the errors of [errors.md](errors.md); their class decides what volplane does next. volplane fills the fields of
requests, the backend those of results; sizes are bytes, times seconds.
"""
    yield "| hook | required | request | returns |\n|---|---|---|---|"
    for name, hook in hooks:
        results = " or ".join(f"`{result.__name__}`" for result in results_of(hook))
        required = "yes" if name in REQUIRED_HOOKS else ""
        yield f"| [`{name}`](#{name}) | {required} | `{request_of(hook).__name__}` | {results} |"
    for name, hook in hooks:
        yield f"\n## {name}\n"
        yield f"`def {name}{bare(inspect.signature(hook))}`\n"
        yield contract(hook) + "\n"
        yield from fields_of(request_of(hook))
    yield "\n## What requests carry\n"
    for name in SHARED:
        yield from fields_of(getattr(volplane, name))
    yield "\n## Results\n"
    results_named = {result.__name__ for _, hook in hooks for result in results_of(hook)} - {"bool"}
    for name in [*sorted(results_named), *NESTED]:
        yield from fields_of(getattr(volplane, name))
    yield "\n### ParameterKind\n"
    yield ", ".join(f"`{kind.value}`" for kind in volplane.ParameterKind)
    yield "\n### Secret\n"
    yield contract(volplane.Secret) + "\n"
    for method in (volplane.Secret.reveal, volplane.Secret.give):
        yield f"- `{method.__name__}{bare(inspect.signature(method))}`: {' '.join(contract(method).split())}"


def is_hook(name: str, member: object) -> bool:
    """Whether this attribute of the specification is a hook."""
    return inspect.isfunction(member) and not name.startswith("_")


def request_of(hook: Hook) -> type:
    """The type of its only argument."""
    kind: type = typing.get_type_hints(hook)["request"]
    return kind


def results_of(hook: Hook) -> tuple[type, ...]:
    """The types it may return."""
    returned = typing.get_type_hints(hook)["return"]
    return typing.get_args(returned) or (returned,)


def fields_of(kind: type) -> Iterator[str]:
    """A heading, the contract, a table of fields. Types are shown as the source spells them."""
    yield f"\n### {kind.__name__}\n"
    yield contract(kind) + "\n"
    rows = dataclasses.fields(typing.cast("typing.Any", kind))
    notes = attribute_notes(kind) | {"context": "Who calls, and under which circumstances: [Context](#context)."}
    if rows:
        yield "| field | type | default | |\n|---|---|---|---|"
    for row in rows:
        yield f"| `{row.name}` | `{str(row.type).replace('|', BAR)}` | {default_of(row)} | {notes[row.name]} |"


def default_of(row: dataclasses.Field[typing.Any]) -> str:
    """What stands there when nobody says otherwise."""
    if row.default is not dataclasses.MISSING:
        value = row.default
    elif row.default_factory is not dataclasses.MISSING:
        value = row.default_factory()
    else:
        return "required"
    if callable(value) or type(value).__module__ == "logging":
        return "set by volplane"
    if value in ({}, frozenset(), (), ""):
        return "empty"
    return f"`{plain(value)}`"


def plain(value: object) -> str:
    """A default as an author would write it."""
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(plain(item) for item in value)
    return repr(value)


def bare(signature: inspect.Signature) -> str:
    """A signature without the quotes of postponed annotations."""
    return str(signature).replace("'", "")


def contract(subject: object) -> str:
    """A docstring; its `name: meaning.` sentences as a list."""
    text = inspect.cleandoc(subject.__doc__ or "")
    listed = re.sub(r"(?:(?<=\.) |^)(\w+(?:, \w+)*): ", r"\n- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"\n+(?=- )", r"\n", re.sub(r"(?<=[.])\n+- ", r"\n\n- ", listed, count=1))


# --- errors -----------------------------------------------------------------------------------------------------


def errors_page() -> Iterator[str]:
    """Every public error, and what it makes volplane do."""
    kinds = [member for name, member in vars(errors).items() if name in errors.__all__ and is_error(member)]
    yield "# Errors\n"
    yield MARK + "\n"
    yield """\
All derive from `VolplaneError`. What a hook raises is a `BackendError`: its class decides what happens next, its text is
for people, `code` keeps the backend's own code. Each reaches the claim or the volume as an event that names the time of
the next try.
"""
    yield "| raised by a hook | proves that nothing was made | next try | gRPC code in CSI |\n|---|---|---|---|"
    for kind in kinds:
        if issubclass(kind, errors.BackendError) and kind is not errors.BackendError:
            proof = "yes" if kind.proves_nothing_done else "no"
            yield f"| [`{kind.__name__}`](#{kind.__name__.lower()}) | {proof} | {kind.retry.value} | {kind.grpc_code} |"
    yield """\
| any other exception, a timeout, a wrong result | no | back-off | UNKNOWN |

- back-off: exponentially later, 0.5 s doubling to 2 min.
- slow: every 5 minutes, and at once when the claim, the class or the driver's options change.
- `retry_after=` of the error goes before both.

Where nothing proves that nothing was made, an asset may exist: volplane looks (`find`) or repeats the same call before it
forgets the claim. A backend that is certain passes `nothing_done=True`."""
    for kind in kinds:
        above = kind.__bases__[0].__name__
        yield f"\n## {kind.__name__}\n"
        yield f"*{'an `Exception`' if above == 'Exception' else f'a `{above}`'}*\n"
        yield contract(kind) + "\n"
        if "__init__" in vars(kind):
            signature = bare(inspect.signature(kind.__init__)).replace("(self, ", "(").removesuffix(" -> None")
            yield f"`{kind.__name__}{signature}`\n"


def is_error(member: object) -> bool:
    """Whether this is one of the tree."""
    return isinstance(member, type) and issubclass(member, errors.VolplaneError)


# --- backends ---------------------------------------------------------------------------------------------------


def backend_page(name: str) -> Iterator[str]:
    """The options and the class parameters of one of our backends."""
    plugin = InstalledPlugins().load("backend", name)
    options = options_schema(plugin)
    required = {
        option.name: "/example" if option.name == "root" else "example"
        for option in options.parameters
        if option.required
    }
    driver = build_driver(f"{name.replace('_', '-')}.example.com", plugin, required)
    yield f"# Backend {name}\n"
    yield MARK + "\n"
    yield contract(plugin.factory) + "\n"
    yield "## Options of a driver\n"
    yield "In the configuration file, by the operator.\n"
    yield markdown(options)
    yield "## Parameters of a class\n"
    yield "In `parameters` of a StorageClass. Names are compared without regard to case.\n"
    yield markdown(driver.info.parameters)


# --- metrics ----------------------------------------------------------------------------------------------------


def metrics_page() -> Iterator[str]:
    """Every metric of a controller process."""
    yield "# Metrics\n"
    yield MARK + "\n"
    yield """\
`volplane run` and `volplane dev` serve them at `/metrics` of `--http`, in the text format of Prometheus. What a stock
controller, client-go or the external provisioner measures too has their name and labels here; the rest is `volplane_…`.
"""
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    for tally in sorted(Metrics().tallies, key=lambda each: each.name):
        labels = ", ".join(f"`{label}`" for label in tally.labels)
        yield f"| `{tally.name}` | {type(tally).__name__.lower()} | {labels} | {tally.documentation} |"


def extensions_page() -> Iterator[str]:
    """The options of the extensions that come with the core."""
    yield "# Extensions\n"
    yield MARK + "\n"
    yield """\
They come with volplane and are around every driver once the configuration names them ([how](../how-to/wrap-every-backend.md)).
"""
    for name in ("call_log", "dry_run", "quota"):
        plugin = InstalledPlugins().load("extension", name)
        yield f"\n## {name}\n\n{contract(inspect.getmodule(plugin.factory))}\n\n{contract(plugin.factory)}\n"
        yield markdown(options_schema(plugin))


# --- testing kit ------------------------------------------------------------------------------------------------


def kit_page() -> Iterator[str]:
    """Every public name of volplane.testing."""
    yield "# Testing kit\n"
    yield MARK + "\n"
    yield contract(testing) + "\n"
    yield "[How to use it](../how-to/test-a-backend.md). The rules and `Subject` are in [conformance.md](conformance.md).\n"
    for name in sorted(set(testing.__all__) - {"RULES", "Subject"}, key=str.lower):
        member = getattr(testing, name)
        yield f"\n## {name}\n\n`{name}{call_of(member)}`\n\n{contract(member)}\n"
        if inspect.isclass(member):
            yield from members_of(member)


def members_of(kind: type) -> Iterator[str]:
    """What an instance offers, in the order of the source; not what pytest asks of a test class."""
    for below in vars(kind).values():
        member = below.fget if isinstance(below, property) else below
        name = getattr(member, "__name__", "_")
        if not inspect.isfunction(member) or not member.__doc__ or name.startswith(("pytest_", "test_")):
            continue
        said = " ".join(re.sub(r"\s*\n- ", " ", contract(member)).split())
        if name == "__init__":
            yield f"- made with: {said}"
        elif not name.startswith("_"):
            yield f"- `{name}{'' if isinstance(below, property) else call_of(member)}`: {said}"


def call_of(member: Callable[..., object]) -> str:
    """How it is called, as the source spells it; without self."""
    made = inspect.isclass(member)
    if made and (dataclasses.is_dataclass(member) or "__init__" not in vars(member)):
        return bare(inspect.signature(member)).removesuffix(" -> None")
    source = inspect.getsource(vars(member)["__init__"] if made else member)
    parsed = typing.cast("ast.FunctionDef", ast.parse(textwrap.dedent(source)).body[0])
    returned = f" -> {ast.unparse(parsed.returns)}" if parsed.returns and not made else ""
    return f"({ast.unparse(parsed.args).removeprefix('self').removeprefix(', ')}){returned}"


# --- conformance ------------------------------------------------------------------------------------------------


def conformance_page() -> Iterator[str]:
    """Every rule of the conformance suite, and what the suite may be told of a backend."""
    fixed = sum(not rule.waivable for rule in RULES)
    yield "# Conformance\n"
    yield MARK + "\n"
    yield f"""\
{len(RULES)} rules say what every backend promises. [How to run them](../how-to/test-a-backend.md), with pytest or from the
command line. They are judged in this order; a rule that builds on one that is violated is not judged. A rule that says
nothing about a backend (it lacks the hook, or the subject the means) is reported as not applicable, with the reason.

A backend that cannot keep a rule declares that in `describe().waived_rules`, rule -> reason, and every report shows it.
{fixed} rules cannot be waived: without them nothing that volplane promises could be kept. An unknown rule, one that cannot be
waived, or a missing reason there is itself a violation (`waivers-are-honest`).
"""
    yield "| rule | the backend promises | needs | can be waived |\n|---|---|---|---|"
    for rule in RULES:
        needs = ", ".join(f"`{hook}`" for hook in sorted(rule.hooks))
        yield f"| `{rule.name}` | {rule.says.replace('|', BAR)} | {needs} | {'yes' if rule.waivable else 'no'} |"
    yield "\n## After csi-sanity\n"
    yield "These rules follow a check of csi-test's sanity suite:\n"
    yield "| rule | csi-sanity |\n|---|---|"
    for rule in RULES:
        if rule.sanity:
            yield f"| `{rule.name}` | {rule.sanity} |"
    yield "\n## Subject\n"
    yield contract(Subject) + "\n"
    yield "| field | type | |\n|---|---|---|"
    notes = attribute_notes(Subject)
    for row in dataclasses.fields(Subject):
        if row.name != "_":
            kind = str(row.type).replace("|", BAR)
            yield f"| `{row.name}` | `{kind}` | {notes.get(row.name, '')} |"


def attribute_notes(kind: type) -> dict[str, str]:
    """The texts that stand below the fields of a class."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0]
    notes: dict[str, str] = {}
    name = ""
    for statement in typing.cast("ast.ClassDef", body).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            notes[name] = " ".join(str(statement.value.value).split())
    return notes


# --- commands ---------------------------------------------------------------------------------------------------


def commands_page() -> Iterator[str]:
    """The help of every command."""
    os.environ.update(COLUMNS=str(WIDTH), TERMINAL_WIDTH=str(WIDTH), NO_COLOR="1")
    yield "# Commands\n"
    yield MARK + "\n"
    yield """\
Exit codes: 0 ok; 1 failed, the reason on stderr as one line `error: …`; 2 wrong usage; 130 Ctrl-C. Results go to stdout,
progress and warnings to stderr; colour only on a terminal, never with `NO_COLOR`. SIGTERM finishes what runs, saves what
must be known later, and exits 0 within 10 seconds. `python -m volplane` is the same as `volplane`.
"""
    yield from help_of([])
    for name in frame.COMMANDS:
        yield f"\n## volplane {name}\n"
        yield from help_of([name])
        for below in subcommands(name):
            yield f"\n### volplane {name} {below}\n"
            yield from help_of([name, below])


def subcommands(name: str) -> tuple[str, ...]:
    """Names of the commands below a command that is a group."""
    commands: typing.Any = typer.main.get_command(frame.application([name]))
    return tuple(getattr(commands.commands[name], "commands", ()))


def help_of(arguments: Sequence[str]) -> Iterator[str]:
    """What `--help` prints, as a block."""
    app = frame.application(arguments)
    result = typer.testing.CliRunner().invoke(app, [*arguments, "--help"], prog_name="volplane", color=False)
    if result.exit_code != 0:
        raise SystemExit(f"volplane {' '.join(arguments)} --help failed: {result.output}")
    yield "```text"
    yield "\n".join(line.rstrip() for line in result.output.rstrip().splitlines())
    yield "```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

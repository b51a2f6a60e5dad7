"""Pages of docs/reference about the contract with backends: hooks and errors."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping

from tools.reference_definitions import Index, definition_of, members_of
from tools.reference_docstrings import MARK, contract
from tools.reference_names import Name, constructor_of, definition, exported, notes_of

import volplane
from volplane import errors
from volplane.hookspecs import REQUIRED_HOOKS, BackendSpec

Hook = Callable[..., object]

SHARED = (
    "Context",
    "ClaimIdentity",
    "VolumeIdentity",
    "NodeIdentity",
    "Ownership",
    "VolumeSource",
    "Segment",
    "AccessMode",
    "VolumeMode",
)


def names_of_hooks() -> list[Name]:
    """The names on the page about hooks: all that authors import, except errors."""
    return [name for name in exported("volplane") if not is_error(getattr(volplane, name.name))]


def names_of_errors() -> list[Name]:
    """The names on the page about errors."""
    return exported("volplane.errors")


def hooks_page(index: Index) -> Iterator[str]:
    """Every hook with its request and results, and every other public type."""
    hooks = [(name, member) for name, member in vars(BackendSpec).items() if is_hook(name, member)]
    yield "# Hooks\n"
    yield MARK + "\n"
    yield contract(inspect.getmodule(BackendSpec)) + "\n"
    yield """\
Raise the errors of [errors.md](errors.md); their class decides what volplane does next. volplane fills the fields of
requests, the backend those of results; sizes are bytes, times seconds. All names are those of the package `volplane`.
"""
    names = {name.name: name for name in names_of_hooks()}
    shown: set[str] = set()

    def define(name: str, level: int) -> Iterator[str]:
        shown.add(name)
        return definition_of(names[name], "hooks.md", index, level=level, methods=name != "BackendSpec")

    yield "| hook | required | request | returns |\n|---|---|---|---|"
    for name, hook in hooks:
        results = " or ".join(spelled(result, names, index) for result in results_of(hook))
        required = "yes" if name in REQUIRED_HOOKS else ""
        yield f"| [`{name}`](#{name}) | {required} | {spelled(request_of(hook), names, index)} | {results} |"
    for name, hook in hooks:
        yield f"\n## {name}\n"
        yield f"`def {name}{bare(inspect.signature(hook))}`\n"
        yield contract(hook) + "\n"
        yield from define(request_of(hook).__name__, 3)
    yield "\n## What requests carry\n"
    for name in SHARED:
        yield from define(name, 3)
    yield "\n## Results\n\nA hook returns one of these, or raises an error.\n"
    for name in sorted({result.__name__ for _, hook in hooks for result in results_of(hook)} - {"bool"}):
        yield from define(name, 3)
    yield "\n## Everything else\n\nThe base class, the marker, schemas of parameters, secrets, and parts of results.\n"
    for name in sorted(names.keys() - shown, key=str.lower):
        yield from define(name, 3)


def spelled(kind: type, names: Mapping[str, Name], index: Index) -> str:
    """A type as a link, if it is ours."""
    return index.linked(names[kind.__name__], "hooks.md") if kind.__name__ in names else f"`{kind.__name__}`"


def bare(signature: inspect.Signature) -> str:
    """A signature without the quotes of postponed annotations."""
    return str(signature).replace("'", "")


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


# --- errors ---


def errors_page() -> Iterator[str]:
    """Every public error, and how volplane reacts to it."""
    kinds = [member for member in vars(errors).values() if is_error(member)]
    yield "# Errors\n"
    yield MARK + "\n"
    yield """\
All derive from `VolplaneError`. What a hook raises is a `BackendError`: its class decides what happens next, its text
is for people, `code` keeps the backend's own code. Each reaches the claim or the volume as an event that names the time
of the next try.
"""
    yield "| raised by a hook | proves that nothing was made | next try | gRPC code in CSI |\n|---|---|---|---|"
    for kind in kinds:
        if issubclass(kind, errors.BackendError) and kind is not errors.BackendError:
            proof = "yes" if kind.proves_nothing_done else "no"
            yield f"| [`{kind.__name__}`](#{kind.__name__.lower()}) | {proof} | {kind.retry.value} | {kind.grpc_code} |"
    yield """\
| any other exception, a timeout, a wrong result | no | back-off | ABORTED |

Every delay stands in [one table](../explanation/delays.md). In short:

- back-off: exponentially later, 0.5 s doubling to 2 min.
- slow: every 5 minutes, and at once when the claim, the class or the driver's options change.
- `retry_after=` of the error goes before both.
- Where many fail at once: of one storage class on one driver a hundred are tried again at once, then ten a second,
  those that failed least often first; each success allows two more. First tries are never held back.

Where nothing proves that nothing was made, an asset may exist: volplane looks (`find`) or repeats the same call before
it forgets the claim. A backend that is certain passes `nothing_done=True`."""
    for kind in kinds:
        above = kind.__bases__[0].__name__
        yield f"\n## {kind.__name__}\n"
        yield f"*{'an `Exception`' if above == 'Exception' else f'a `{above}`'}*\n"
        yield contract(kind) + "\n"
        if "__init__" in vars(kind):
            made = constructor_of(typing.cast("ast.ClassDef", definition(Name(kind.__module__, kind.__name__))))
            if made is not None:
                yield f"`{kind.__name__}({ast.unparse(made.args).removeprefix('self, ')})`\n"
    yield "\n## RetryPolicy\n"
    yield contract(errors.RetryPolicy) + "\n"
    policy = typing.cast("ast.ClassDef", definition(Name(errors.__name__, "RetryPolicy")))
    yield from members_of(errors.RetryPolicy, notes_of(policy))


def is_error(member: object) -> bool:
    """Whether this is a public error."""
    return isinstance(member, type) and issubclass(member, errors.VolplaneError)

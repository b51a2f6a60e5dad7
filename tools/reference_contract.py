"""Pages of docs/reference about the contract with backends: hooks and errors."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator

from tools.reference_fields import MARK, bare, contract, fields_of

import volplane
from volplane import errors
from volplane.hookspecs import REQUIRED_HOOKS, BackendSpec

Hook = Callable[..., object]

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


# --- errors ---


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
- Where many fail at once: of one storage class on one driver a hundred are tried again at once, then ten a second, those that
  failed least often first; each success allows two more. First tries are never held back.

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

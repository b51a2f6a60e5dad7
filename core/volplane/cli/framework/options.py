"""Options that several commands share, with one spelling and one help text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import typer
from typer import Option

from volplane.cli.framework.console import Output
from volplane.drivers.parameters import read_value
from volplane.schemas import Parameter, ParameterKind

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_NAMESPACE: Final = "volplane-system"


def path_option(name: str, metavar: str, says: str, *more: str, **settings: Any) -> Any:
    """Return a `typer.Option` for a path. says: its help. more: other spellings of the option."""
    # Not checked here: where the path is used, one line says what is wrong with it and what to do.
    return Option(name, *more, metavar=metavar, help=says, readable=False, **settings)


COMPLETING: Final[list[Callable[[str, Mapping[str, Any]], Iterable[str]]]] = []
"""What completes parameters: `volplane.cli.completion` adds itself, in the process that completes and in no other."""


def completed(what: str) -> Any:
    """Return what completes a parameter for kubectl: see `volplane.cli.completion.words`."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return [each for words in COMPLETING for each in words(what, ctx.params) if each.startswith(incomplete)]

    return complete


def with_options(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
    """Give a command the fields of a dataclass as options, in place of its first parameter, which is made of them."""
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    fields = inspect.signature(first.annotation, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(first.annotation(**{name: given.pop(name) for name in fields}), **given)  # type: ignore[call-arg]

    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *fields.values())]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in keywords}
    return run


Kubeconfig = Annotated[
    Path | None, path_option("--kubeconfig", "FILE", "Which cluster; else KUBECONFIG, ~/.kube/config or in-cluster.")
]
Namespace = Annotated[
    str, Option("--namespace", "-n", metavar="NAME", help="Else the context's.", autocompletion=completed("namespace"))
]
AllNamespaces = Annotated[bool, Option("--all-namespaces", "-A", help="Of all namespaces.")]
Watching = Annotated[bool, Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")]
ConfigFile = Annotated[
    Path | None, path_option("--config", "FILE", "Drivers and their options, YAML. Else every backend that needs none.")
]
OurNamespace = Annotated[str, Option(metavar="NAME", help="Namespace of the lease, the sealing key and scrubber pods.")]
OutputFormat = Annotated[Output, Option("--output", "-o", help="How the result is written.")]
LogFormat = Annotated[Literal["text", "json"], Option("--log-format", help="How logs are written.")]
Verbose = Annotated[int, Option("--verbose", "-v", count=True, help="Log more; twice: everything.", show_default=False)]


def duration_option(name: str, *, says: str, default: str = "", minimum: float | None = None) -> Any:
    """Return a `typer.Option` for a length of time like kubectl's: seconds (`300`) or with units (`90s`, `1h30m`).

    The value is in seconds. A wrong one is an error of usage that says what would be right.

    says: its help. default: how the help shows the default; "" = it does not. minimum: seconds, allowed itself.
    """
    parameter = Parameter(name=name, doc=says, kind=ParameterKind.DURATION, minimum=minimum)

    def seconds(value: object) -> float:
        try:
            return float(read_value(parameter, value))
        except ValueError as error:
            raise typer.BadParameter(f"it is {str(value)!r}, {error}") from None

    return Option(name, metavar="TIME", help=says, parser=seconds, show_default=default or False)

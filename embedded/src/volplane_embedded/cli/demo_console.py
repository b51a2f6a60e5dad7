"""The console of the demo, which shows how objects change."""

from __future__ import annotations

import typer

from volplane._messages import sanitize
from volplane.cli.framework.console import COLOURS, Console


class DemoConsole(Console):
    """A console that also writes the phases of objects."""

    def phase(self, kind: str, name: str, phase: str, detail: str = "") -> None:
        """Write the new phase of an object: `claim   default/data   Bound   to pvc-…`.

        A detail that does not fit the terminal follows on a line of its own.
        """
        head = f"  {kind:<7} {sanitize(name):<40} "
        detail = sanitize(detail)
        fits = len(head) + max(9, len(sanitize(phase))) + 1 + len(detail) <= self._width
        shown = sanitize(f"{phase:<9}" if fits and detail else phase)
        if colour := COLOURS.get(phase):
            shown = typer.style(shown, fg=colour)
        self._write(f"{head}{shown} {detail}".rstrip() if fits else f"{head}{shown}")
        if not fits:
            self._paragraph(f"{'':<10}{detail}", 12)

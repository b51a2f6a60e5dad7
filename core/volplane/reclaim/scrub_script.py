"""What the scrubber pod runs, and what is told of its failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["LONGEST_FAILURE", "SCRIPT", "last_lines"]

LONGEST_FAILURE = 900
"""Characters of a failure that a volume keeps: its annotations have a limit, and a pod may say much."""

SCRIPT = """\
test -d /scrub || { echo 'there is no volume at /scrub'; exit 1; }
while read -r _ where _; do
  case "$where" in /scrub/?*) echo "something is mounted at $where: nothing was erased"; exit 1 ;; esac
done < /proc/self/mounts || exit 1
find /scrub/. ! -name . -prune -exec rm -rf {} + 2>&1 | tail -n 5
left=$(ls -A /scrub) || exit 1
test -z "$left" || { echo 'not erased:'; printf '%s\\n' "$left" | head -n 5; exit 1; }
"""
"""Empties /scrub without following links or crossing mounts, and fails unless nothing is left.

It uses only what POSIX asks of a shell, find, rm, ls, head and tail (IEEE Std 1003.1-2008), and a command that the
image lacks makes it fail. rm, not find, descends: its paths may grow longer than PATH_MAX.
"""

_USAGE = re.compile(r"(?i)usage:|BusyBox v\S+ .*multi-call binary|try '.*--help'")
_SAID = re.compile(r"[\w./-]+: |[a-z][\w ]*:$")
"""How a line begins that a program wrote on purpose: its name, or a heading of ours."""


def last_lines(text: str, longest: int = LONGEST_FAILURE) -> str:
    """The end of a program's output on one line, from a whole line on, without the help text of commands.

    longest: characters.
    """
    kept: list[str] = []
    left = longest
    for line in reversed(list(_without_usage(text))):
        shown = line.strip()
        if kept and len(shown) + 1 > left:
            break
        kept.append(shown[-longest:])
        left -= len(shown) + 1
    return " ".join(reversed(kept))


def _without_usage(text: str) -> Iterator[str]:
    """The lines but for the blank ones and those from `Usage:` to the next message of a program."""
    usage = False
    for line in text.splitlines():
        if _USAGE.match(line.strip()):
            usage = True
        elif _SAID.match(line) and not line.startswith("Defaults: "):
            usage = False
        if line.strip() and not usage:
            yield line

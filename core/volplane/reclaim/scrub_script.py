"""The command of the scrubber pod, and the message about its failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["BLOCK_SCRIPT", "DEVICE", "LONGEST_FAILURE", "SCRIPT", "last_lines"]

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

DEVICE = "/dev/volplane-scrub"
"""Where the pod has a block volume."""

BLOCK_SCRIPT = f"""\
disk={DEVICE}
test -e "$disk" || {{ echo "there is no volume at $disk"; exit 1; }}
size=$(blockdev --getsize64 "$disk" 2>/dev/null || stat -Lc %s "$disk") || exit 1
test "$size" -gt 0 || {{ echo "the volume at $disk has no size"; exit 1; }}
blkdiscard -f "$disk" 2>/dev/null || fallocate -p -l "$size" "$disk" 2>/dev/null
cmp -s -n "$size" "$disk" /dev/zero && exit 0
dd if=/dev/zero of="$disk" bs=4M count="$size" iflag=count_bytes,fullblock conv=notrunc,fsync status=none || exit 1
cmp -n "$size" "$disk" /dev/zero || {{ echo 'not erased'; exit 1; }}
"""
"""Discards the whole disk; where it reads anything but zeros after that, overwrites it. Fails unless all of it is zero.

blkdiscard, blockdev and fallocate are of util-linux, cmp of diffutils, the others of coreutils: essential in Debian.
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

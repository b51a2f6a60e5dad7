"""What is known of variants: verdicts of earlier runs, and those that need not be noticed, with the reason."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.variant import Name, Variant

__all__ = ["Verdict", "Verdicts", "excused_variants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a variant was noticed, and by what."""

    noticed: bool
    by: str = ""


def excused_variants(file: Path) -> set[Name]:
    """Names of those that need not be noticed. Raises ValueError for an entry without a reason."""
    found: set[Name] = set()
    for path, entries in tomllib.loads(file.read_text("utf-8")).items():
        for entry in entries:
            if not entry["reason"].strip():
                raise ValueError(f"{file}: no reason is given for {entry['was']!r} in {path}")
            found.update((path, entry["function"], entry["was"], now) for now in entry["now"])
    return found


class Verdicts:
    """Variants that were noticed, kept until their module changes. A test that is removed is not seen: `forget`."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self._file = directory / "verdicts.json"
        known = json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}
        self._known: dict[str, dict[str, str]] = known

    def forget(self, path: str) -> None:
        """Judge the variants of the module anew."""
        self._known.pop(self._key(path), None)

    def noticed_by(self, variant: Variant) -> str:
        """What noticed it; "" if it is not known to be noticed."""
        return self._known.get(self._key(variant.path), {}).get("\n\n".join(variant.name), "")

    def keep(self, variant: Variant, by: str) -> None:
        """It was noticed."""
        self._known.setdefault(self._key(variant.path), {})["\n\n".join(variant.name)] = by

    def save(self) -> None:
        """Write them down."""
        self._file.write_text(json.dumps(self._known), "utf-8")

    def _key(self, path: str) -> str:
        return f"{path} {hashlib.sha256((self._root / path).read_bytes()).hexdigest()[:16]}"

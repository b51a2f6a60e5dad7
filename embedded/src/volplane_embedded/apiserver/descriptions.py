"""The texts of OpenAPI, which `kubectl explain` shows, read from the models of the installed `kubernetes` package.

The files of the models are read as text: to import all of them takes a second and 100 MB. Only OpenAPI
needs the texts. Without them, as in an installation without source files, schemas have no descriptions.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PREFIXES: Final = ("v1", "core_v1", "events_v1", "storage_v1")
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MODEL: Final = re.compile(
    r'^class \w+\(BaseModel\):\n    """\n(.*?)\n\s*(?:Attributes:|""")', re.DOTALL | re.MULTILINE
)
_FIELD: Final = re.compile(r"^    (\w+): .* = Field\((.*)\)$", re.MULTILINE)
_ALIAS: Final = re.compile(r'\bserialization_alias="(\w+)"')
_TEXT: Final = re.compile(r'\bdescription=("(?:[^"\\]|\\.)*")')


@functools.cache
def descriptions_of(definition: str) -> Mapping[str, str]:
    """Return the texts of a definition's fields by their JSON names; "" is the definition itself.

    definition: its full name, such as "io.k8s.api.core.v1.Pod".
    """
    source = _source_of(definition)
    model = _MODEL.search(source)
    texts = {"": ast.literal_eval(f'"""{model[1]}"""').strip()} if model is not None else {}
    for field in _FIELD.finditer(source):
        alias, text = _ALIAS.search(field[2]), _TEXT.search(field[2])
        if text is not None:
            # The models rename fields that a base class of theirs has: `var_field` is `field`.
            name = alias[1] if alias is not None else field[1].removeprefix("var_")
            texts[name] = ast.literal_eval(text[1])
    return texts


def _source_of(definition: str) -> str:
    package = importlib.util.find_spec("kubernetes")
    if package is None or not package.submodule_search_locations:
        return ""
    *_, group, _version, kind = definition.split(".")
    name = _WORD.sub("_", kind).lower()
    models = Path(package.submodule_search_locations[0], "client", "models")
    for prefix in sorted(_PREFIXES, key=lambda prefix: not prefix.startswith(f"{group}_")):
        path = models / f"{prefix}_{name}.py"
        if path.is_file():
            return path.read_text("utf-8")
    return ""

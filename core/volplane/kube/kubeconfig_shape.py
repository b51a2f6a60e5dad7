"""What is wrong with the shape of a kubeconfig file, in words for whoever wrote it.

The kubernetes package takes the shape for granted and raises whatever Python raises.
Source: k8s.io/client-go/tools/clientcmd/api/v1, Config.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["flaw"]

_LISTS: Final = {"clusters": "cluster", "contexts": "context", "users": "user"}
_TEXTS: Final = {
    "cluster": ("server", "certificate-authority", "certificate-authority-data", "tls-server-name", "proxy-url"),
    "context": ("cluster", "user", "namespace"),
    "user": ("token", "tokenFile", "client-certificate", "client-key", "client-certificate-data", "client-key-data"),
}


def flaw(paths: str) -> str:
    """The first thing in these files (separated as in KUBECONFIG) that has another shape; "" if there is none."""
    for path in filter(None, paths.split(os.pathsep)):
        try:
            found = next(_flaws(yaml.safe_load(Path(path).read_text("utf-8"))), "")
        except (OSError, ValueError, yaml.YAMLError):
            continue  # said by the package, with the place
        if found:
            return f"{path} is no kubeconfig: {found}"
    return ""


def _flaws(config: object) -> Iterator[str]:
    if config is None:
        yield "it is empty"
    elif not isinstance(config, Mapping):
        yield f"it holds {_kind(config)}, expected a mapping with clusters, contexts, users and current-context"
    else:
        for key, part in _LISTS.items():
            yield from _entries(key, part, config.get(key))
        if not isinstance(config.get("current-context", ""), str):
            yield f"current-context is {config['current-context']!r}, expected the name of a context"


def _entries(key: str, part: str, entries: object) -> Iterator[str]:
    if entries is None:
        return
    if not isinstance(entries, list):
        yield f"{key} is {_kind(entries)}, expected a list"
        return
    for number, entry in enumerate(entries):
        where = f"{key}[{number}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            yield f"{where} has no name that is text"
            continue
        inner = entry.get(part)
        if not isinstance(inner, Mapping):
            yield f"{where}.{part} is {_kind(inner)}, expected a mapping"
            continue
        yield from _texts(f"{where}.{part}", inner, _TEXTS[part])
        if part == "user":
            yield from _plugin(f"{where}.{part}.exec", inner.get("exec"))


def _plugin(where: str, plugin: Any) -> Iterator[str]:
    if plugin is None:
        return
    if not isinstance(plugin, Mapping):
        yield f"{where} is {_kind(plugin)}, expected a mapping"
        return
    yield from _texts(where, plugin, ("command", "apiVersion"))
    args, env = plugin.get("args") or [], plugin.get("env") or []
    if not isinstance(args, list):
        yield f"{where}.args is {_kind(args)}, expected a list"
    if not isinstance(env, list) or not all(isinstance(each, Mapping) and {"name", "value"} <= {*each} for each in env):
        yield f"{where}.env is not a list of mappings with name and value"


def _texts(where: str, holder: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        if holder.get(key) is not None and not isinstance(holder[key], str):
            yield f"{where}.{key} is {_kind(holder[key])}, expected text"


def _kind(value: object) -> str:
    """What a value is, in the words of YAML; the value itself may be a secret."""
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")

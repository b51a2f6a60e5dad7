"""Plugins that are passed as objects instead of installed."""

from __future__ import annotations

from collections.abc import Iterable

from volplane._messages import nearest
from volplane.drivers.contract import Plugin
from volplane.drivers.discovery import InstalledPlugins
from volplane.errors import PluginError

__all__ = ["GivenPlugins"]


class GivenPlugins(InstalledPlugins):
    """These plugins, as if they were installed."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        self._plugins = {(plugin.kind, plugin.name): plugin for plugin in plugins}

    def names(self, kind: str) -> tuple[str, ...]:
        return tuple(sorted(name for k, name in self._plugins if k == kind))

    def load(self, kind: str, name: str) -> Plugin:
        if (plugin := self._plugins.get((kind, name))) is None:
            raise PluginError(f"{kind} {name!r} is not there{nearest(name, self.names(kind))}")
        return plugin

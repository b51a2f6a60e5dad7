"""The export manager of the model: the calls of NFS-Ganesha's D-Bus that the driver makes, on the tree of a `State`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from volplane import Unavailable
from volplane_nfs.ganesha.bus import Refused
from volplane_nfs.nfs4.attributes import DIRECTORY
from volplane_nfs.testing.model.state import Node, State

DATA: Final = "/data"
"""Where the share is on the server's own file system."""
_BLOCK: Final = re.compile(r"EXPORT \{(?P<fields>[^{}]*(\{[^{}]*\}[^{}]*)*)\}")
_FIELD: Final = re.compile(r'(?P<key>\w+) = "?(?P<value>[^";]+)"?;')

BusFault = Callable[[str], str | None]
"""Asked about every call by its method: "lost before" or "lost after" it is done, "busy" with another operation."""


@dataclass(frozen=True, slots=True)
class Export:
    """path: on the server's own file system. pseudo: in its name space."""

    path: str
    pseudo: str
    node: Node


class ModelBus:
    """The exports of a server, and the folder `files` that its configuration includes."""

    def __init__(self, server: State, files: Path) -> None:
        self._server = server
        self._files = files
        self._exports: dict[int, Export] = {}
        self.fault: BusFault = lambda _method: None
        self.data = DATA

    @property
    def picture(self) -> dict[str, object]:
        """Return everything that is exported, now and after a restart: pseudo path or name of a file -> path or
        content.
        """
        files = {f"file {file.name}": file.read_text() for file in self._files.iterdir()}
        return {**{export.pseudo: export.path for export in self._exports.values()}, **files}

    def restart(self) -> None:
        """Forget all exports, and read the folder again."""
        for export_id in list(self._exports):
            self._remove_export(export_id)
        for file in sorted(self._files.iterdir()):
            fields = _fields_of(file)
            if self._node(fields["Path"]) is not None:
                self._add_export(str(file), f"EXPORT(Export_Id={fields['Export_Id']})")

    def call(self, method: str, signature: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """As `volplane_nfs.ganesha.bus.Bus.call`."""
        fault = self.fault(method)
        if fault == "busy":
            raise Refused("InvalidArgs", "another export admin operation is in progress, try again later")
        if fault == "lost before":
            raise Unavailable("the D-Bus of the model does not answer")
        methods: dict[str, Callable[..., tuple[Any, ...]]] = {
            "AddExport": self._add_export,
            "RemoveExport": self._remove_export,
            "DisplayExport": self._display_export,
            "ShowExports": self._show_exports,
        }
        answer = methods[method](*arguments)
        if fault == "lost after":
            raise Unavailable("the D-Bus of the model does not answer")
        return answer

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _node(self, path: str) -> Node | None:
        node: Node | None = self._server.share
        for name in path.removeprefix(self.data).strip("/").split("/"):
            node = node.children.get(name.encode()) if node is not None else None
        return node

    def _add_export(self, file: str, expression: str) -> tuple[Any, ...]:
        fields = _fields_of(Path(file))
        export_id, path, pseudo = int(fields["Export_Id"]), fields["Path"], fields["Pseudo"]
        if expression != f"EXPORT(Export_Id={export_id})":
            raise Refused("InvalidArgs", "Error finding exports")
        if export_id in self._exports:
            raise Refused("InvalidFileContent", "Selected entries in FILE already active!!!")
        if any(each.pseudo == pseudo for each in self._exports.values()):
            raise Refused("InvalidFileContent", "0 export entries added because (invalid param value) errors")
        node = self._node(path)
        if node is None:
            raise Refused("InvalidFileContent", "0 export entries added because (block validation) errors")
        self._exports[export_id] = Export(path, pseudo, node)
        node.exported = True
        self._above(pseudo).children[_last(pseudo)] = node
        return ("1 exports added",)

    def _above(self, pseudo: str) -> Node:
        """Return the directory of the name space, made if need be, that holds an export."""
        above = self._server.root
        for name in pseudo.strip("/").encode().split(b"/")[:-1]:
            if name not in above.children:
                self._server.enter(above, name, self._server.make(DIRECTORY, above))
            above = above.children[name]
        return above

    def _remove_export(self, export_id: int) -> tuple[Any, ...]:
        export = self._exports.pop(export_id, None)
        if export is None:
            raise Refused("InvalidArgs", "lookup_export failed with Export id not found")
        export.node.exported = any(each.node is export.node for each in self._exports.values())
        del self._above(export.pseudo).children[_last(export.pseudo)]
        return ()

    def _display_export(self, export_id: int) -> tuple[Any, ...]:
        if export_id not in self._exports:
            raise Refused("InvalidArgs", "Export id not found")
        export = self._exports[export_id]
        return export_id, export.path, export.pseudo, "", []

    def _show_exports(self) -> tuple[Any, ...]:
        return (0, 0), [(export_id, export.path) for export_id, export in self._exports.items()]


def _last(pseudo: str) -> bytes:
    return pseudo.rpartition("/")[2].encode()


def _fields_of(file: Path) -> dict[str, str]:
    try:
        text = file.read_text()
    except OSError as error:
        raise Refused("InvalidArgs", f"error 2 ({error.strerror})") from error
    block = _BLOCK.search(text)
    if block is None:
        raise AssertionError(f"NFS-Ganesha would not start with {file.name}: {text!r}")
    return {each["key"]: each["value"] for each in _FIELD.finditer(block["fields"])}

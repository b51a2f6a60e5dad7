"""The kubeconfig and the token of clients. All files have mode 0600."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from typing import Final

import yaml

CONTEXT: Final = "volplane"
_TOKEN_BYTES: Final = 32


def ensure_token(directory: Path | None) -> str:
    """Return the token kept in the data directory. A new one if there is none, or no directory."""
    if directory is None:
        return secrets.token_urlsafe(_TOKEN_BYTES)
    path = directory / "token"
    try:
        found = path.read_text().strip()
    except FileNotFoundError:
        found = ""
    if found:
        path.chmod(0o600)
        return found
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    _write(path, token + "\n")
    return token


def render_kubeconfig(url: str, token: str, authority: str | None) -> str:
    """YAML of a kubeconfig; `authority` is the PEM certificate of an https server."""
    cluster: dict[str, str] = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT, "namespace": "default"}}],
        "current-context": CONTEXT,
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


def write_kubeconfig(path: Path, url: str, token: str, authority: str | None) -> None:
    """Write a kubeconfig of mode 0600, atomically replacing an existing file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, render_kubeconfig(url, token, authority))


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise

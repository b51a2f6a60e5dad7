"""The secrets that calls carry: all keys of one Secret, or a JSON object of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from volplane import Secret, Unavailable

_MOST: Final = 100
_SHORTEST: Final = 8
"""Characters; shorter values are not looked for in answers."""


class ControllerSecrets:
    """What the calls carry as `secrets`, read anew for each."""

    def __init__(self, secret: Secret | None) -> None:
        self._secret = secret

    @property
    def where(self) -> str:
        """NAMESPACE/NAME of the Kubernetes Secret; "" = it is none."""
        secret = self._secret
        return secret.where if secret is not None and secret.place == "secret" and secret.key == "*" else ""

    def reveal(self) -> dict[str, str]:
        """Return key -> value. Raises Unavailable, without any part of the text."""
        secret = self._secret
        if secret is None:
            return {}
        try:
            found = json.loads(secret.reveal())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or len(found) > _MOST or not all(isinstance(v, str) for v in found.values()):
            raise Unavailable(
                f"option controller_secret: {secret.reference} is no JSON object of at most {_MOST} texts; "
                "secret:NAMESPACE/NAME/* takes all keys of a Kubernetes Secret"
            )
        for key, value in found.items():
            _hide(key, value)
        return found

    def is_in(self, values: Mapping[str, str]) -> bool:
        """Return whether a value of the secrets is in these texts."""
        secrets = [each for each in self.reveal().values() if len(each) >= _SHORTEST]
        texts = [*values.keys(), *values.values()]
        return any(secret in text for secret in secrets for text in texts)

    def add_to(self, request: Any) -> Any:
        """Put them into a request that is about to be sent. Returns it."""
        if self._secret is not None:
            request.secrets.update(self.reveal())
        return request


def _hide(key: str, value: str) -> None:
    """Have the value redacted in all logs and messages of this process."""
    if value:
        secret = Secret(f"secret:csi/csi/{''.join(each if each.isalnum() else '-' for each in key)[:253] or 'key'}")
        secret.give(value)
        secret.reveal()

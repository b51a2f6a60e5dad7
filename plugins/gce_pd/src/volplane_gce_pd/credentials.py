"""The credentials that a driver's calls are signed with. Imported at the first call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import google.auth
import google.auth.identity_pool
import google.auth.impersonated_credentials
import google.oauth2.credentials
import google.oauth2.service_account
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError

from volplane import Secret
from volplane_gce_pd.settings import Settings

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_LIFETIME_SECONDS = 3_600


def credentials_for(settings: Settings) -> Any:
    """Return the credentials of the option, else of the default chain; with `impersonate_service_account`, those of
    that account, fetched again before they expire. Raises google.auth.exceptions.GoogleAuthError.
    """
    if settings.credentials is None:
        source, _project = google.auth.default(scopes=_SCOPES)
    else:
        source = _OptionCredentials(settings.credentials)
    if not settings.impersonate_service_account:
        return source
    return google.auth.impersonated_credentials.Credentials(
        source_credentials=source,
        target_principal=settings.impersonate_service_account,
        target_scopes=list(_SCOPES),
        lifetime=_LIFETIME_SECONDS,
    )


class _OptionCredentials(Credentials):  # type: ignore[misc]
    """The credentials of the option, which is read again for every call, so that a changed file is used at once."""

    def __init__(self, secret: Secret) -> None:
        super().__init__()
        self._secret = secret
        self._text = ""
        self._made: Any = None
        self._lock = threading.Lock()
        self._universe_domain = self._current().universe_domain

    def _current(self) -> Any:
        text = self._secret.reveal()
        with self._lock:
            if text != self._text:
                self._made, self._text = _from_file(text), text
                self.token = None
            return self._made

    @property
    def token_state(self) -> Any:
        self._current()
        return super().token_state

    def before_request(self, *request: Any) -> None:
        self._current()
        super().before_request(*request)

    def refresh(self, request: Any) -> None:
        made = self._current()
        made.refresh(request)
        self.token, self.expiry = made.token, made.expiry


def _from_file(text: str) -> Any:
    """Return credentials of the kinds that run no program. No error repeats the text."""
    try:
        contents = json.loads(text)
        kind = contents["type"]
    except (ValueError, TypeError, KeyError):
        raise DefaultCredentialsError(
            "option credentials is no credentials file of Google (JSON with a type)"
        ) from None
    makers: dict[str, Callable[..., Any]] = {
        "service_account": google.oauth2.service_account.Credentials.from_service_account_info,
        "authorized_user": google.oauth2.credentials.Credentials.from_authorized_user_info,
        "external_account": google.auth.identity_pool.Credentials.from_info,
    }
    if kind not in makers:
        raise DefaultCredentialsError(
            f"option credentials is a credentials file of an unknown type, expected one of {', '.join(makers)}"
        )
    try:
        made = makers[kind](contents, scopes=list(_SCOPES))
        # The client library does so with credentials that it is given: no token server is asked.
        return made.with_always_use_jwt_access(True) if kind == "service_account" else made
    except (ValueError, TypeError, KeyError):
        raise DefaultCredentialsError(f"option credentials is no whole credentials file of type {kind}") from None

"""The credentials that a driver's calls are signed with. Imported at the first call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import google.auth
import google.auth.identity_pool
import google.auth.impersonated_credentials
import google.oauth2.credentials
import google.oauth2.service_account
from google.auth.exceptions import DefaultCredentialsError

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
        source = _from_file(settings.credentials.reveal())
    if not settings.impersonate_service_account:
        return source
    return google.auth.impersonated_credentials.Credentials(
        source_credentials=source,
        target_principal=settings.impersonate_service_account,
        target_scopes=list(_SCOPES),
        lifetime=_LIFETIME_SECONDS,
    )


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
        return makers[kind](contents, scopes=list(_SCOPES))
    except (ValueError, TypeError, KeyError):
        raise DefaultCredentialsError(f"option credentials is no whole credentials file of type {kind}") from None

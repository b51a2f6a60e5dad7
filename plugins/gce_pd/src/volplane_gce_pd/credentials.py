"""The credentials that a driver's calls are signed with. Imported at the first call."""

from __future__ import annotations

import json
from typing import Any

import google.auth
import google.auth.credentials
import google.auth.impersonated_credentials
from google.auth.exceptions import DefaultCredentialsError

from volplane_gce_pd.settings import Settings

__all__ = ["credentials_for"]

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_LIFETIME_SECONDS = 3_600


def credentials_for(settings: Settings) -> Any:
    """The credentials of the option, else of the default chain; with `impersonate_service_account`, those of that
    account, fetched again before they expire. Raises google.auth.exceptions.GoogleAuthError.
    """
    if settings.credentials is None:
        source, _project = google.auth.default(scopes=_SCOPES)
    else:
        source, _project = google.auth.load_credentials_from_dict(_read(settings.credentials.reveal()), scopes=_SCOPES)
    if not settings.impersonate_service_account:
        return source
    return google.auth.impersonated_credentials.Credentials(
        source_credentials=source,
        target_principal=settings.impersonate_service_account,
        target_scopes=list(_SCOPES),
        lifetime=_LIFETIME_SECONDS,
    )


def _read(text: str) -> dict[str, Any]:
    """The file's contents, which no error repeats."""
    try:
        contents = json.loads(text)
    except ValueError:
        contents = None
    if not isinstance(contents, dict) or not contents.get("type"):
        raise DefaultCredentialsError("option credentials is no credentials file of Google (JSON with a type)")
    return contents

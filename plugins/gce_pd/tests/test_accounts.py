"""Classes that choose an account: its Secret or its service account makes all calls about their disks."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from volplane import InvalidArgument, PermissionDenied, Secret
from volplane_gce_pd.settings import Settings
from volplane_gce_pd.testing import InProcess

ACCOUNT = "storage@test-project.iam.gserviceaccount.com"


def secret(name: str, token: str) -> Secret:
    made = Secret(f"secret:{name}/*")
    made.give(json.dumps({"cloud-sa.json": token}))
    return made


def named(name: str) -> Mapping[str, str]:
    return {"csi.storage.k8s.io/secret-name": name, "csi.storage.k8s.io/secret-namespace": "team"}


@pytest.fixture
def accounts(new_site: type[Any]) -> Any:
    """A driver whose calls carry the credentials that its settings name, as their token."""
    one, two = secret("team/one", "hush-hush-one"), secret("team/two", "hush-hush-two")

    class Accounts(new_site):  # type: ignore[misc,valid-type]
        def _driver(self) -> Any:
            clients: dict[str, InProcess] = {}
            self.one = one

            def connect(settings: Settings, service: str) -> Any:
                known = settings.credentials
                token = known.reveal() if known is not None else settings.impersonate_service_account or "own"
                if token not in clients:
                    clients[token] = InProcess(self.fake, token=token)
                return clients[token](settings, service)

            self.connect = connect
            return super()._driver()

        def only(self, *tokens: str) -> None:
            self.fake.behave(tokens=frozenset(tokens))

    return Accounts(class_secrets=(one, two), class_service_accounts=(ACCOUNT,))


@pytest.mark.parametrize(
    ("parameters", "token"),
    [
        (named("one"), "hush-hush-one"),
        (named("two"), "hush-hush-two"),
        ({"impersonate-service-account": ACCOUNT}, ACCOUNT),
        ({}, "own"),
    ],
)
def test_a_disk_is_made_and_deleted_with_the_account_of_its_class_alone(
    accounts: Any, parameters: Mapping[str, str], token: str
) -> None:
    accounts.only(token)
    asset = accounts.provision(parameters=parameters)
    accounts.only("own")
    accounts.again()  # What is known now is on the volume.
    accounts.only(token)
    accounts.delete(asset)
    assert accounts.fake.disks == {}
    assert "hush" not in str((asset, accounts.states))


def test_keys_that_google_does_not_take_are_told_with_their_secret_and_without_themselves(
    accounts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "volplane")
    accounts.only("own", "hush-hush-two")
    with pytest.raises(PermissionDenied, match="with the account team/one") as refused:
        accounts.provision(parameters=named("one"))
    accounts.provision("u2", parameters=named("two"))
    accounts.one.give(json.dumps({"cloud-sa.json": "hush-hush-new"}))
    accounts.only("own", "hush-hush-new")
    accounts.provision(parameters=named("one"))  # The Secret was changed, and is used at once.
    assert len(accounts.fake.disks) == 2
    assert "hush" not in f"{caplog.text} {refused.value}"


def test_the_disks_of_a_project_are_listed_once_whichever_account_made_them(accounts: Any) -> None:
    accounts.provision("u1", parameters=named("one"))
    accounts.provision("u2", parameters={"impersonate-service-account": ACCOUNT})
    assert sorted(each.name for each in accounts.listed()) == ["pvc-u1", "pvc-u2"]


def test_what_no_account_can_be_is_refused_with_what_would_be_right(accounts: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"Secret team/three is none .*; add secret:team/three/\* to"):
        accounts.validate(**named("three"))
    with pytest.raises(InvalidArgument, match="impersonate-service-account is 'other@x': the driver's options do not"):
        accounts.validate(**{"impersonate-service-account": "other@x"})

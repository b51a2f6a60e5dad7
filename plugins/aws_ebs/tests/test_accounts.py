"""Classes that choose an account: its Secret or its role makes all calls about their volumes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    Absent,
    Asset,
    InProgress,
    InvalidArgument,
    PermissionDenied,
    Secret,
    Unavailable,
    ValidateRequest,
)
from volplane.drivers.parameters import check
from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.api import NewClient, connect
from volplane_aws_ebs.parameters import PARAMETERS
from volplane_aws_ebs.settings import Settings
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server, Fault, FaultKind, InProcess

ROLE = "arn:aws:iam::333333333333:role/storage"
REGION = "eu-test-1"
SECRETS = {"team/one": "AKIAONE", "team/two": "AKIATWO"}
BY_ROLE = "ASIASTORAGE"
PREFIX = "csi.storage.k8s.io/"


def secret(name: str, **keys: str) -> Secret:
    made = Secret(f"secret:{name}/*")
    made.give(json.dumps(keys))
    return made


def parameters(**given: str) -> dict[str, Any]:
    """The parameters of a class, as the core hands them over."""
    values, flaws = check(PARAMETERS, {key.replace("__", PREFIX): value for key, value in given.items()}, "parameter")
    assert flaws == ()
    return values


def named(name: str, *uses: str) -> dict[str, Any]:
    space, _, short = name.partition("/")
    keys = {}
    for use in uses or ("secret",):
        keys |= {f"__{use}-name": short, f"__{use}-namespace": space}
    return parameters(**keys)


@pytest.fixture
def accounts(new_region: type[Any]) -> Any:
    """A driver with an account of its own, and those of two Secrets and a role, each with volumes of its own."""
    return _accounts_in(new_region)()


def _accounts_in(Base: type[Any]) -> type[Any]:  # noqa: N803
    class Accounts(Base):  # type: ignore[misc,valid-type]
        """A driver with an account of its own, and those of two Secrets and a role, each with volumes of its own."""

        def __init__(self, **options: Any) -> None:
            self.fakes: dict[str, FakeEC2] = {}
            self.secrets = {each: secret(each, key_id=key, access_key=f"hush-{key}") for each, key in SECRETS.items()}
            super().__init__(class_secrets=tuple(self.secrets.values()), class_roles={ROLE: "outside"}, **options)

        def _driver(self) -> AwsEbsBackend:
            if not self.fakes:
                keys = ("", *SECRETS.values(), BY_ROLE)
                only = {key: Behaviour(access_keys=frozenset({key}), account=f"1{key}") for key in keys}
                made = {key: FakeEC2(behaviour, clock=self.clock) for key, behaviour in only.items()}
                self.fakes = {**made, "": self.fake}
            self.connect = self._connect
            return super()._driver()

        def _connect(self, settings: Settings) -> NewClient:
            """Return clients of the account whose credentials the settings name."""
            key = (
                settings.access_key_id.reveal() if settings.access_key_id is not None else settings.role_arn and BY_ROLE
            )
            assert settings.role_external_id == ("outside" if key == BY_ROLE else "")
            return InProcess(self.fakes[key], access_key=key or "own")(settings)

        def volumes(self) -> dict[str, int]:
            return {key: len(fake.volumes) for key, fake in self.fakes.items() if fake.volumes}

    return Accounts


def test_each_class_makes_its_volumes_with_its_account_and_each_volume_goes_with_its_own(accounts: Any) -> None:
    one = accounts.provision("u1", parameters=named("team/one"))
    two = accounts.provision("u2", parameters=named("team/two"))
    own = accounts.provision("u3", parameters=parameters())
    role = accounts.provision("u4", parameters=parameters(roleArn=ROLE))
    assert accounts.volumes() == {"AKIAONE": 1, "AKIATWO": 1, "": 1, BY_ROLE: 1}
    accounts.again()  # What is known now is on the volumes.
    for uid, asset in (("u1", one), ("u2", two), ("u3", own), ("u4", role)):
        before = accounts.volumes()
        accounts.delete(asset, uid, attributes=asset.attributes)
        gone = [key for key in before if key not in accounts.volumes()]
        assert len(gone) == 1, uid
    assert accounts.volumes() == {}


def test_each_use_has_its_own_secret_and_a_use_without_one_the_drivers_own(accounts: Any) -> None:
    asset = accounts.provision(parameters=named("team/one", "provisioner-secret"))
    with pytest.raises(Exception, match="does not exist"):
        accounts.expand(asset, 2 << 30, attributes=asset.attributes)
    both = accounts.provision("u2", parameters=named("team/one", "provisioner-secret", "controller-expand-secret"))
    grown = accounts.expand(both, 2 << 30, uid="u2", attributes=both.attributes)
    assert (grown.capacity_bytes, grown.attributes) == (2 << 30, both.attributes)


def test_a_crash_before_the_volume_is_known_finds_it_with_the_account_of_its_class(accounts: Any) -> None:
    demand = accounts.demand(parameters=named("team/two"))
    begun = accounts.backend.provision(demand)
    assert isinstance(begun, InProgress)
    assert accounts.volumes() == {}  # The account is saved before anything is made.
    accounts.provision(parameters=named("team/two"))
    accounts.again()
    found = accounts.find()
    assert isinstance(found, Asset)
    accounts.delete(found, attributes=found.attributes)
    assert accounts.volumes() == {}
    assert isinstance(accounts.find("nothing"), Absent)


def test_all_accounts_are_listed_each_volume_once_and_an_orphan_goes_with_the_account_that_shows_it(
    accounts: Any,
) -> None:
    for uid, name in (("u1", "team/one"), ("u2", "team/two")):
        accounts.provision(uid, parameters=named(name))
    accounts.provision("u3", parameters=parameters())
    accounts.fakes["AKIATWO"] = accounts.fakes["AKIAONE"]  # Two Secrets of one account.
    accounts.fakes["AKIAONE"].behave(access_keys=None)
    accounts.again()
    handles = {each.name: each.handle for each in accounts.listed()}
    assert sorted(each.name for each in accounts.listed()) == ["pvc-u1", "pvc-u3"]
    orphan = accounts.deletion(handles["pvc-u1"], "u1")
    accounts.finish(accounts.backend.delete, replace(orphan, volume=replace(orphan.volume, uid="")))
    assert [each.name for each in accounts.listed()] == ["pvc-u3"]


def test_a_snapshot_is_made_with_the_account_of_its_volume_and_deleted_there(accounts: Any) -> None:
    asset = accounts.provision(parameters=named("team/one"))
    cut = accounts.cut(accounts.identity(asset, attributes=asset.attributes).handle)
    cut = replace(cut, volume=replace(cut.volume, attributes=asset.attributes))
    snapshot = accounts.finish(accounts.backend.create_snapshot, cut)
    assert list(accounts.fakes["AKIAONE"].snapshots) == [snapshot.handle]
    assert [each.handle for each in accounts.listed_snapshots()] == [snapshot.handle]
    accounts.again()
    assert accounts.find_snapshot(snapshot.handle).handle == snapshot.handle
    accounts.delete_snapshot(snapshot.handle)
    assert accounts.fakes["AKIAONE"].snapshots == {}


def test_a_refusal_of_one_account_slows_no_other_one_down(accounts: Any) -> None:
    fake = accounts.fakes["AKIAONE"]
    fake.faults.add(
        Fault(action="CreateVolume", kind=FaultKind.REFUSE, code="RequestLimitExceeded", message="Slow.", times=50)
    )
    with pytest.raises(Exception, match="Slow"):
        accounts.provision(parameters=named("team/one"))
    begun = accounts.clock.now
    accounts.provision("u2", parameters=named("team/two"))
    assert accounts.clock.now - begun < 5


def test_without_the_secret_of_one_account_only_its_volumes_wait_and_go_on_once_it_is_there(accounts: Any) -> None:
    of_one = accounts.provision("u2", parameters=named("team/one"))
    of_two = accounts.provision(parameters=named("team/two"))
    cut = accounts.cut(accounts.identity(of_two, attributes=of_two.attributes).handle)
    cut = replace(cut, volume=replace(cut.volume, attributes=of_two.attributes))
    snapshot = accounts.finish(accounts.backend.create_snapshot, cut)
    accounts.secrets["team/one"] = lost = Secret("secret:team/one/*", needed=False)
    lost.lacking = "Secret team/one does not exist; create it with its keys"
    accounts.again(class_secrets=tuple(accounts.secrets.values()))

    said = "key key_id of Secret team/one cannot be read: Secret team/one does not exist; create it"
    with pytest.raises(Unavailable, match=said):
        accounts.provision("u3", parameters=named("team/one"))
    with pytest.raises(Unavailable, match=said):
        accounts.delete(of_one, "u2", attributes=of_one.attributes)
    assert accounts.find_snapshot(snapshot.handle).handle == snapshot.handle
    accounts.delete_snapshot(snapshot.handle)
    accounts.delete(of_two, attributes=of_two.attributes)
    with pytest.raises(Unavailable, match=said):  # It may be of the account that cannot be asked.
        accounts.find_snapshot(snapshot.handle)
    assert accounts.volumes() == {"AKIAONE": 1}

    lost.give(json.dumps({"key_id": "AKIAONE", "access_key": "hush-AKIAONE"}))
    accounts.delete(of_one, "u2", attributes=of_one.attributes)
    assert accounts.volumes() == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"__provisioner-secret-name": "three", "__provisioner-secret-namespace": "team"},
            (
                "parameter csi.storage.k8s.io/provisioner-secret-name: Secret team/three is none that classes may "
                "name; add secret:team/three/\\* to the driver's option class_secrets"
            ),
        ),
        ({"__provisioner-secret-name": "one"}, "-name and -namespace must be given together"),
        (
            {"__provisioner-secret-name": "one", "__provisioner-secret-namespace": "${pvc.namespace}"},
            "parameter csi.storage.k8s.io/provisioner-secret-namespace is '\\${pvc.namespace}': no templates",
        ),
        ({"__fstyp": "xfs"}, "parameter 'csi.storage.k8s.io/fstyp': no such key; expected are"),
        (
            {"roleArn": "arn:aws:iam::1:role/other"},
            "roleArn is 'arn:aws:iam::1:role/other': the driver's options do not",
        ),
        (
            {"roleArn": ROLE, "__secret-name": "one", "__secret-namespace": "team"},
            "roleArn is .*: it is assumed with the driver's own credentials; remove one of them",
        ),
    ],
)
def test_what_no_account_can_be_is_refused_with_what_would_be_right(
    accounts: Any, given: dict[str, str], said: str
) -> None:
    request = ValidateRequest(context=accounts.context(), parameters=parameters(**given))
    with pytest.raises(InvalidArgument, match=said):
        accounts.backend.validate(request)
    assert accounts.volumes() == {}


def test_a_volume_of_an_account_that_is_not_listed_any_more_stays_and_says_so(accounts: Any) -> None:
    asset = accounts.provision(parameters=named("team/one"))
    accounts.again(class_secrets=())
    with pytest.raises(Unavailable, match="account team/one is none of the driver's"):
        accounts.delete(asset, attributes=asset.attributes)
    assert len(accounts.fakes["AKIAONE"].volumes) == 1


def test_only_whole_secrets_and_roles_can_be_listed() -> None:
    for options, said in (
        ({"class_secrets": (Secret("secret:team/one/key"),)}, "secret:team/one/key is no whole Secret"),
        ({"class_roles": {"storage": ""}}, "'storage' is no ARN of a role"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            AwsEbsBackend({"region": REGION, **options})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, region: Any) -> Iterator[Callable[..., Any]]:
    """A region whose driver has boto3 as it is, over sockets."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own-hush-hush")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with FakeEC2Server(region.fake) as server:

        def serve(**options: Any) -> Any:
            region.connect = connect
            return region.again(endpoint=server.url, sts_endpoint=server.url, **options)

        yield serve


def test_a_secret_that_rotates_is_used_at_once_and_a_wrong_one_is_told_without_itself(
    served: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "volplane")
    caplog.set_level(logging.INFO, "botocore")  # Some test before may have asked for more; `caplog` hides nothing.
    keys = secret("team/one", key_id="AKIAFIRST", access_key="first-hush-hush")
    region = served(class_secrets=(keys,), class_roles={ROLE: "outside", f"{ROLE}-2": ""})
    region.fake.behave(access_keys=frozenset({"AKIAFIRST"}), roles={ROLE: "outside", f"{ROLE}-2": "asked for"})
    asset = region.provision(parameters=named("team/one"))
    region.fake.behave(access_keys=frozenset({"AKIASECOND", "ASIASTORAGE"}))
    with pytest.raises(PermissionDenied, match="with the account team/one") as refused:
        region.delete(asset, attributes=asset.attributes)
    keys.give(json.dumps({"key_id": "AKIASECOND"}))
    with pytest.raises(Unavailable, match=r"Secret team/one has no key access_key.*; its keys: key_id"):
        region.delete(asset, attributes=asset.attributes)
    keys.give(
        json.dumps({"key_id": "AKIASECOND", "access_key": "second-hush-hush", "session_token": "token-hush-hush"})
    )
    region.delete(asset, attributes=asset.attributes)
    assert region.fake.volumes == {}
    region.provision("u2", parameters=parameters(roleArn=ROLE))
    with pytest.raises(Exception, match="AssumeRole"):
        region.provision("u3", parameters=parameters(roleArn=f"{ROLE}-2"))
    said = f"{caplog.text} {refused.value} {asset}"
    assert "hush-hush" not in said


def test_a_key_of_another_region_is_refused_before_anything_is_made(region: Any) -> None:
    arn = "arn:aws:kms:eu-other-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000"
    request = ValidateRequest(context=region.context(), parameters=parameters(kmsKeyId=arn))
    with pytest.raises(
        InvalidArgument, match=r"parameter kmsKeyId is .*: a key of eu-other-1, and volumes of eu-test-1"
    ):
        region.backend.validate(request)
    for right in (arn.replace("eu-other-1", REGION), "alias/storage"):
        region.backend.validate(ValidateRequest(context=region.context(), parameters=parameters(kmsKeyId=right)))

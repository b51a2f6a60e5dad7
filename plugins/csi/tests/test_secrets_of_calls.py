"""Secrets: in the calls that carry them, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from volplane import BackendError, InvalidArgument, Secret, Unavailable
from volplane.drivers.contract import Plugin
from volplane.drivers.loading import build_driver
from volplane.secret import redacted
from volplane_csi import CsiBackend
from volplane_csi.testing import Behaviour, InProcess

SECRETS = {"adminID": "the-admin", "adminKey": "known-to-two-only"}
GIB = 1 << 30


@pytest.fixture
def world(new_world: Any, tmp_path: Path) -> Any:
    (tmp_path / "secret").write_text(json.dumps(SECRETS))
    return new_world(Behaviour(secrets=SECRETS), controller_secret=f"file:{tmp_path}/secret")


def test_every_call_that_may_carry_secrets_carries_them(world: Any) -> None:
    asset = world.provision()
    world.attach(asset)
    world.detach(asset)
    world.expand(asset, 2 * GIB)
    world.modify(asset, iops="2")
    made = world.snapshot(asset)
    world.find_snapshot(made.handle)
    world.delete_snapshot(made.handle)
    world.delete(asset)
    carrying = {method for method, request in world.fake.requests if "secrets" in request.DESCRIPTOR.fields_by_name}
    assert len(carrying) == 9


def test_nothing_that_is_saved_or_made_has_a_secret(world: Any) -> None:
    request = world.saved(world.demand())
    told = [repr(request), repr(world.backend.provision(request)), repr(world.backend.__dict__)]
    assert not any(value in text for value in SECRETS.values() for text in told)


def test_texts_of_the_driver_are_redacted(world: Any) -> None:
    asset = world.provision()
    world.refuse("DeleteVolume", "INTERNAL", "login of the-admin with known-to-two-only failed")
    with pytest.raises(BackendError) as error:
        world.delete(asset)
    assert redacted(str(error.value)).count("***") == 2


def test_a_driver_that_echoes_them_makes_no_volume(world: Any) -> None:
    world.fake.behave(echoes_secrets=True)
    with pytest.raises(BackendError, match="puts a secret into the context") as error:
        world.provision()
    assert "known" not in str(error.value)


def test_they_are_read_anew_for_each_call(world: Any, tmp_path: Path) -> None:
    asset = world.provision()
    fresh = {"adminID": "the-admin", "adminKey": "a-new-one-of-today"}
    (tmp_path / "secret").write_text(json.dumps(fresh))
    world.fake.behave(secrets=fresh)
    world.delete(asset)


@pytest.mark.parametrize("text", ["known-to-two-only", '["known-to-two-only"]', '{"a": 7}', "{" * 9000])
def test_a_secret_of_another_form_is_refused_without_its_text(world: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(Unavailable, match="is no JSON object of at most 100 texts") as error:
        world.provision()
    assert "known" not in str(error.value)


def test_a_class_that_names_another_secret_is_refused(new_world: Any) -> None:
    parameters = {
        "csi.storage.k8s.io/provisioner-secret-name": "ceph",
        "csi.storage.k8s.io/provisioner-secret-namespace": "storage",
    }
    with pytest.raises(InvalidArgument, match=r"set the option controller_secret to secret:storage/ceph/\*"):
        new_world().provision(parameters=parameters)


def test_all_keys_of_a_kubernetes_secret_are_meant_by_an_asterisk(new_world: Any) -> None:
    world = new_world(Behaviour(secrets=SECRETS))

    def factory(options: Any) -> CsiBackend:
        return CsiBackend(options, connect_to=InProcess(world.fake))

    factory.options_schema = CsiBackend.options_schema  # type: ignore[attr-defined]
    options = {"socket": "/run/csi.sock", "controller_secret": "secret:storage/ceph/*"}
    driver = build_driver("fake.csi.example.com", Plugin(kind="backend", name="csi", factory=factory), options)
    (secret,) = driver.secrets.values()
    assert isinstance(secret, Secret)
    secret.give(json.dumps(SECRETS))
    parameters = {
        "csi.storage.k8s.io/secret-name": "ceph",
        "csi.storage.k8s.io/secret-namespace": "storage",
    }
    request = world.demand(parameters=parameters)
    answer = driver.call(request)
    asset = driver.call(world.with_state(request, answer.state))
    assert asset.annotations["volume.kubernetes.io/provisioner-deletion-secret-name"] == "ceph"
    assert asset.source.fields["nodePublishSecretRef"] == {"name": "ceph", "namespace": "storage"}

"""The driver over sockets: the client library's own transport, credentials, and endpoints that misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from volplane import (
    Asset,
    ClaimIdentity,
    Context,
    DeleteRequest,
    Done,
    InProgress,
    InvalidArgument,
    Ownership,
    PermissionDenied,
    ProvisionRequest,
    Secret,
    StartRequest,
    Unavailable,
    VolumeIdentity,
)
from volplane_gce_pd import GcePdBackend, api, credentials
from volplane_gce_pd.testing import Behaviour, FakeCompute, FakeComputeServer

GIB = 1 << 30
CONTEXT = Context(driver="pd.volplane.dev", cluster_id="cluster-1")
OWNER = Ownership(cluster_id="cluster-1", claim_uid="u1", volume_name="pvc-u1")
FAST = Behaviour(default_seconds=0.05)


class Token(Credentials):  # type: ignore[misc]
    """Credentials that give one token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token

    def refresh(self, request: object) -> None:
        raise RefreshError("the account is gone")


@pytest.fixture
def anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", lambda **_: (AnonymousCredentials(), None))


def driver(url: str, **options: Any) -> GcePdBackend:
    return GcePdBackend({"project": "test-project", "region": "europe-test1", "endpoint": url, **options})


def start(backend: GcePdBackend) -> None:
    backend.start(StartRequest(context=CONTEXT))


def finish(hook: Any, make: Any) -> Any:
    state: Any = {}
    while True:
        result = hook(make(Context(driver="pd.volplane.dev", cluster_id="cluster-1", state=state)))
        if not isinstance(result, InProgress):
            return result
        state = dict(result.state)
        threading.Event().wait(result.retry_after)


def test_a_whole_life_over_a_socket(anonymous: None) -> None:
    with FakeComputeServer(FakeCompute(FAST)) as server:
        backend = driver(server.url)
        start(backend)
        asset = finish(
            backend.provision,
            lambda context: ProvisionRequest(
                context=context,
                name="pvc-u1",
                capacity_bytes=GIB,
                owner=OWNER,
                claim=ClaimIdentity(namespace="default", name="data", uid="u1"),
                segment={"topology.gke.io/zone": "europe-test1-a"},
            ),
        )
        assert isinstance(asset, Asset)
        volume = VolumeIdentity(
            name="pvc-u1", uid="1", handle=asset.handle, source=asset.source, capacity_bytes=GIB, owner=OWNER
        )
        assert finish(backend.delete, lambda context: DeleteRequest(context=context, volume=volume)) == Done()
        assert server.fake.disks == {}


def test_an_update_names_each_field_by_a_parameter_of_its_own(anonymous: None) -> None:
    with FakeComputeServer(FakeCompute(FAST)) as server:
        client = api.ComputeClient(driver(server.url)._options)
        kind = "projects/test-project/zones/europe-test1-a/diskTypes/hyperdisk-balanced"
        disk = {"name": "d", "size_gb": 100, "type_": kind}
        client.call(api.Method.DISKS_INSERT, zone="europe-test1-a", disk_resource=disk)
        threading.Event().wait(0.1)
        client.call(
            api.Method.DISKS_UPDATE,
            zone="europe-test1-a",
            disk="d",
            paths="provisionedIops,provisionedThroughput",
            disk_resource={"name": "d", "provisioned_iops": 5_000, "provisioned_throughput": 300},
        )
        threading.Event().wait(0.1)
        (made,) = server.fake.disks.values()
        assert (made.iops, made.throughput) == (5_000, 300)


# --- credentials ------------------------------------------------------------------------------------------------


def test_a_token_that_is_not_accepted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", lambda **_: (Token("good"), None))
    fake = FakeCompute(Behaviour(tokens=frozenset({"good"})))
    with FakeComputeServer(fake) as server:
        backend = driver(server.url)
        start(backend)
        fake.behave(tokens=frozenset({"other"}))
        with pytest.raises(PermissionDenied, match="the account is gone") as raised:
            start(backend)
        assert raised.value.code == api.NO_CREDENTIALS


def test_a_clock_that_is_wrong_is_named_where_tokens_are_refused_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Skewed(Token):
        def before_request(self, *_: object) -> None:
            raise RefreshError(
                "invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable "
                "timeframe. Check your iat and exp values in the JWT claim."
            )

    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", lambda **_: (Skewed("x"), None))
    with FakeComputeServer(FakeCompute()) as server:
        with pytest.raises(PermissionDenied, match=r"Check your iat and exp values.*look at the clock"):
            start(driver(server.url))
        assert server.fake.calls.total() == 0


def test_no_credentials_are_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(**_: object) -> Any:
        raise DefaultCredentialsError("Your default credentials were not found")

    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", nothing)
    with pytest.raises(PermissionDenied, match="default credentials were not found: give the driver credentials"):
        start(driver("http://127.0.0.1:9"))


def test_a_token_server_that_cannot_be_reached_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**_: object) -> Any:
        raise TransportError("metadata.google.internal does not answer")

    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", unreachable)
    with pytest.raises(Unavailable, match="no token could be fetched"):
        start(driver("http://127.0.0.1:9"))


KEY_FILE = json.dumps({"type": "authorized_user", "client_id": "a", "client_secret": "hush", "refresh_token": "r"})


def test_each_driver_has_credentials_of_its_own_and_may_act_as_another_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKS_KEY", KEY_FILE)
    options = {"project": "test-project", "region": "europe-test1", "credentials": Secret("env:DISKS_KEY")}
    own = credentials.credentials_for(GcePdBackend(options)._settings)
    assert own._current().client_id == "a"
    other = GcePdBackend({**options, "impersonate_service_account": "disks@test-project.iam.gserviceaccount.com"})
    acting = credentials.credentials_for(other._settings)
    assert acting.service_account_email == "disks@test-project.iam.gserviceaccount.com"
    assert acting._source_credentials._current().client_id == "a"


def test_a_credentials_file_that_rotates_is_used_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(self: Any, _request: object) -> None:
        self.token, self.expiry = f"token of {self.refresh_token}", None

    monkeypatch.setattr("google.oauth2.credentials.Credentials.refresh", refresh)
    key = tmp_path / "key.json"
    key.write_text(KEY_FILE.replace('"r"', '"old"'), "utf-8")
    fake = FakeCompute(Behaviour(tokens=frozenset({"token of old"})))
    with FakeComputeServer(fake) as server:
        backend = driver(server.url, credentials=Secret(f"file:{key}"))
        start(backend)
        fake.behave(tokens=frozenset({"token of new"}))
        key.write_text(KEY_FILE.replace('"r"', '"new"'), "utf-8")
        start(backend)
        assert fake.calls["zones.list"] == 2


def test_what_the_default_chain_reads_is_read_again_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = iter([Token("old"), Token("new")])
    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", lambda **_: (next(chain), None))
    fake = FakeCompute(Behaviour(tokens=frozenset({"new"})))
    with FakeComputeServer(fake) as server:
        backend = driver(server.url)
        with pytest.raises(PermissionDenied):
            start(backend)
        start(backend)


def test_the_universe_is_that_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    key = {**json.loads(KEY_FILE), "universe_domain": "example.goog"}
    monkeypatch.setenv("DISKS_KEY", json.dumps(key))
    settings = driver("", credentials=Secret("env:DISKS_KEY"))._options
    assert api.connect(settings, "DisksClient").api_endpoint == "compute.example.goog"
    monkeypatch.setattr("volplane_gce_pd.credentials.google.auth.default", lambda **_: (AnonymousCredentials(), None))
    assert api.connect(driver("")._options, "DisksClient").api_endpoint == "compute.googleapis.com"


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"client_secret": "hush"}',
        '{"type": "strange", "client_secret": "hush"}',
        '{"type": "service_account", "private_key": "hush"}',
        '{"type": "authorized_user", "client_secret": "hush"}',
        '{"type": "external_account", "client_secret": "hush"}',
    ],
)
def test_a_wrong_credentials_file_is_refused_without_repeating_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKS_KEY", text)
    backend = driver("http://127.0.0.1:9", credentials=Secret("env:DISKS_KEY"))
    with pytest.raises(PermissionDenied, match="option credentials is") as raised:
        start(backend)
    assert "hush" not in str(raised.value)


# --- endpoints that misbehave -----------------------------------------------------------------------------------


@contextmanager
def endpoint(answer: bytes | None) -> Iterator[str]:
    """Accepts every connection, reads the request, and sends this; None: nothing, and never closes."""
    server = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # The listener is closed at the end, and the client may leave first.
            while True:
                connection, _ = server.accept()
                open_ones.append(connection)
                if answer is not None:
                    with suppress(OSError):
                        connection.recv(65_536)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in open_ones:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in open_ones:
            connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"items": [',
        b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"items": [',
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
        b"",
    ],
    ids=["cut off", "half of JSON", "no JSON", "a proxy's page", "nothing"],
)
def test_an_answer_that_cannot_be_read_leaves_the_outcome_open(anonymous: None, answer: bytes) -> None:
    with endpoint(answer) as url, pytest.raises(Unavailable, match="may have been done"):
        start(driver(url))


def test_an_endpoint_that_hangs_is_given_up(anonymous: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_TIMEOUT_SECONDS", 0.2)
    with endpoint(None) as url, pytest.raises(Unavailable, match="may have been done") as raised:
        start(driver(url))
    assert raised.value.code == api.NO_ANSWER


def test_an_endpoint_where_nobody_listens_has_done_nothing(anonymous: None) -> None:
    with pytest.raises(Unavailable, match="option endpoint") as raised:
        start(driver("http://127.0.0.1:9"))
    assert raised.value.code == api.NOT_SENT


def test_a_bad_option_is_told_with_its_name() -> None:
    with pytest.raises(InvalidArgument, match="option zones"):
        driver("", zones=("us-central1-a",))

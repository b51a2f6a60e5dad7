"""A secret is where its reference says, is read when it is asked for, and is shown by nothing."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from volplane import Asset, InProgress, Secret, Unavailable, VolumeSource, redacted
from volplane._messages import one_line, sanitize
from volplane.secret import MOST_HIDDEN, SecretPlace

PASSWORD = "correct horse battery staple"


@pytest.mark.parametrize(
    ("reference", "place", "where", "key"),
    [
        ("env:FILER_PASSWORD", SecretPlace.ENVIRONMENT, "FILER_PASSWORD", ""),
        ("file:/etc/volplane/filer password", SecretPlace.FILE, "/etc/volplane/filer password", ""),
        ("secret:volplane-system/filer.eu/tls.key", SecretPlace.KUBERNETES, "volplane-system/filer.eu", "tls.key"),
    ],
)
def test_a_reference_names_a_place(reference: str, place: SecretPlace, where: str, key: str) -> None:
    secret = Secret(reference)
    assert (secret.reference, secret.place, secret.where, secret.key) == (reference, place, where, key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PASSWORD,
        "env:",
        "env:1ST",
        "env:A B",
        "env:hunter-2",
        "ENV:A",
        "file:relative",
        "file:/",
        "file:/etc/",
        "secret:name/key",
        "secret:Ns/name/key",
        "secret:ns/name/",
        "secret:ns/name/a/b",
        "secret:ns/name/a b",
        "vault:x",
    ],
)
def test_what_is_no_reference_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY$"):
        Secret(text)


def test_the_environment_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("env:VOLPLANE_TEST_SECRET")
    with pytest.raises(Unavailable, match=r"^environment variable VOLPLANE_TEST_SECRET is not set$"):
        secret.reveal()
    for value in ("first value", "second value "):
        monkeypatch.setenv("VOLPLANE_TEST_SECRET", value)
        assert secret.reveal() == value
    monkeypatch.setenv("VOLPLANE_TEST_SECRET", "")
    with pytest.raises(Unavailable, match=r"^env:VOLPLANE_TEST_SECRET is empty$"):
        secret.reveal()


def test_a_file_is_read_each_time_without_the_newline_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "password"
    secret = Secret(f"file:{path}")
    with pytest.raises(Unavailable, match=r"password cannot be read: No such file or directory$"):
        secret.reveal()
    for written, value in [("one two\n", "one two"), ("three\r\n", "three"), ("a\nb\n\n", "a\nb\n"), ("x", "x")]:
        path.write_text(written, newline="")
        assert secret.reveal() == value
    path.write_bytes(b"\xff")
    with pytest.raises(Unavailable, match=r"is no UTF-8 text$"):
        secret.reveal()
    path.write_text("x" * 65_537)
    with pytest.raises(Unavailable, match=r"is longer than 65536 characters$"):
        secret.reveal()


def test_a_key_of_a_kubernetes_secret_is_what_the_cluster_gave_last() -> None:
    secret = Secret("secret:ns/filer/password")
    with pytest.raises(
        Unavailable, match=r"^key password of Secret ns/filer is not known: only controllers of a cluster"
    ):
        secret.reveal()
    secret.give("from the cluster\n")
    assert secret.reveal() == "from the cluster"
    secret.give("rotated")
    assert secret.reveal() == "rotated"


def test_an_error_proves_nothing_of_the_operation_in_whose_middle_it_came() -> None:
    with pytest.raises(Unavailable) as missing:
        Secret("env:VOLPLANE_TEST_SECRET").reveal()
    assert not missing.value.nothing_done


def test_nothing_but_reveal_shows_it() -> None:
    secret = Secret("secret:ns/filer/password")
    secret.give(PASSWORD)
    assert secret.reveal() == PASSWORD
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>50}", repr({"password": secret}), repr([secret])]
    shown += [repr(copy.copy(secret)), repr(copy.deepcopy(secret)), repr(pickle.dumps(secret)), repr(dir(secret))]
    assert not any(PASSWORD in text for text in shown)
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(Unavailable):
        pickle.loads(pickle.dumps(secret)).reveal()


def test_secrets_are_equal_by_what_they_name() -> None:
    assert Secret("env:A") == Secret("env:A")
    assert len({Secret("env:A"), Secret("env:A"), Secret("env:B")}) == 2
    assert Secret("env:A") != "env:A"


def given(text: str) -> Secret:
    secret = Secret("secret:ns/name/key")
    secret.give(text)
    secret.reveal()
    return secret


def test_what_was_revealed_is_hidden_in_texts_however_it_is_spelt() -> None:
    value = 'back\\slash "quote" ünï'
    given(value)
    for text in (value, repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert redacted(f"login with {text} failed").count("***") == 1
        assert "slash" not in redacted(text)
    assert "slash" not in redacted("".join(traceback.format_exception(RuntimeError(value))))


def test_a_secret_within_another_does_not_leave_the_rest_of_it() -> None:
    given("inner-part")
    given("outer-inner-part-outer")
    assert redacted("x outer-inner-part-outer y inner-part") == "x *** y ***"


def test_lines_of_a_key_file_are_hidden_each_short_ones_too() -> None:
    given("-----BEGIN KEY-----\nMIIEvgIBADANBgkqhkiG9w0\nq8=x\n-----END KEY-----\n")
    assert redacted("at line 2: MIIEvgIBADANBgkqhkiG9w0, q8=x") == "at line 2: ***, ***"


@pytest.mark.parametrize("value", ["pass\tword\tone", "pa ss  wo rd", "ab\ncd\nef", "tab\tin\nlines\there"])
@pytest.mark.parametrize("show", [str, sanitize, one_line, repr, json.dumps, lambda text: text.replace("\t", " ")])
def test_white_space_in_a_secret_does_not_show_it(value: str, show: Callable[[str], str]) -> None:
    """Messages are made one line; tabs become spaces."""
    given(value)
    assert redacted(f"with {show(value)!s} it failed").count("***") >= 1
    for part in value.split():
        assert part not in redacted(f"with {show(value)} it failed").replace("with", "").replace("failed", "")


@pytest.mark.parametrize("value", ["hunter-two", "Pa55/+word?", "s\u00fc\u00dfes Geheimnis"])
@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_does_not_show_it_wherever_it_stands(value: str, before: str, encode: Callable[[bytes], bytes]) -> None:
    given(value)
    header = encode(f"{before}{value}!tail".encode()).decode()
    hidden = redacted(f"authorization: basic {header}").removeprefix("authorization: basic ")
    assert "***" in hidden
    left = hidden.replace("***", "")
    assert len(left) <= len(encode(f"{before}!tail".encode())) + 4


@pytest.mark.parametrize("show", [str.upper, str.lower, str.title, quote, quote_plus, lambda t: t.encode().hex()])
def test_neither_another_case_nor_another_encoding_shows_it(show: Callable[[str], str]) -> None:
    given("Correct Horse/Battery&Staple")
    assert redacted(f"x {show('Correct Horse/Battery&Staple')} y") == "x *** y"


def test_a_text_whose_lower_case_is_longer_is_cut_at_the_right_place() -> None:
    given("hunter-two")
    assert redacted("\u0130\u0130 Hunter-Two \u0130") == "\u0130\u0130 *** \u0130"


def test_very_short_texts_are_not_hidden_because_nothing_would_be_legible() -> None:
    given("abc")
    assert redacted("abc of abcde") == "abc of abcde"


def test_what_is_remembered_is_bounded_and_the_newest_stays_hidden() -> None:
    for number in range(MOST_HIDDEN + 10):
        given(f"rotated-{number:06}")
    assert redacted(f"rotated-{MOST_HIDDEN + 9:06}") == "***"
    assert redacted("rotated-000000") == "rotated-000000"


@pytest.mark.parametrize(
    "value",
    [
        PASSWORD,
        f"nfs://user:{PASSWORD}@filer/export",
        [{"a": (PASSWORD,)}],
        {PASSWORD: 1},
        {b"x" + PASSWORD.encode()},
        Asset(handle="h", source=VolumeSource(kind="nfs", fields={"path": f"/{PASSWORD}"}), capacity_bytes=1),
        InProgress(retry_after=1, state={"token": PASSWORD}),
    ],
)
def test_a_secret_is_found_wherever_it_hides_in_a_value(value: Any) -> None:
    secret = given(PASSWORD)
    assert secret.is_in(value)
    secret.give("another one")
    secret.reveal()
    assert not secret.is_in(value)


def test_what_was_never_read_or_is_short_is_looked_for_nowhere() -> None:
    assert not Secret("env:VOLPLANE_TEST_SECRET").is_in("anything")
    assert not given("data").is_in("/srv/data")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mount failed: https://admin:hunter2@filer/", "mount failed: https://admin:***@filer/"),
        ("postgres://u:hunter2@db/x?sslmode=on", "postgres://u:***@db/x?sslmode=on"),
        ("call --db-pass hunter2 --secret-key 'hunter2 x' -v", "call --db-pass *** --secret-key '***' -v"),
        ("Server=x;Uid=u;Pwd=hunter2;Timeout=1", "Server=x;Uid=u;Pwd=***;Timeout=1"),
        ("b'<SessionToken>Fwo/X</SessionToken></Credentials>'", "b'<SessionToken>***</SessionToken></Credentials>'"),
        ("{'X-Amz-Security-Token': b'Fwo/X+=', 'Host': b'x'}", "{'X-Amz-Security-Token': b'***', 'Host': b'x'}"),
        ("x-amz-security-token:FwoX", "x-amz-security-token:***"),
        ('{"access_token": "ya29.x", "expires_in": 3}', '{"access_token": "***", "expires_in": 3}'),
        ('{"message": "password=\\"hunter2\\""}', '{"message": "password=\\"***\\""}'),
        ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30", "Authorization: Bearer ***"),
    ],
)
def test_what_stands_beside_the_name_of_a_secret_is_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "option password: Secret volplane-system/filer does not exist",
        "password=secret:volplane-system/filer/password",
        "option --token: expected env:NAME",
        "the endpoint https://host:8443/path?mail=user@example.com does not answer",
        "bypass=true, secretName=filer, a bearer token is missing",
        "</SessionToken>'",
    ],
)
def test_names_and_references_of_secrets_stay_legible(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("part", ["-", "--a-", "password=", "a://", 'secret="', "token\\"])
def test_a_text_that_a_tenant_chose_is_searched_in_linear_time(part: str) -> None:
    began = time.process_time()
    redacted(f"{part * 20_000} token")
    assert time.process_time() - began < 2

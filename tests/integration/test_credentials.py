"""Certificates and tokens that rotate, plugins that misbehave, files that are not as they should be."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.certificates import Authority, guarded, verify_strictly
from volplane.errors import ApiUnavailable, ConfigurationError
from volplane.kube.client import Client
from volplane.kube.http.transport import HttpTransport
from volplane.kube.transport import Request

pytestmark = pytest.mark.real_time

PLUGIN = "client.authentication.k8s.io/v1"


def kubeconfig(directory: Path, user: dict[str, Any], url: str = "https://127.0.0.1:1", **cluster: Any) -> Path:
    path = directory / "kubeconfig"
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(text))
    return path


def trusting(authority: Authority) -> dict[str, str]:
    return {"certificate-authority": str(authority.file)}


def program(directory: Path, text: str) -> dict[str, Any]:
    """An exec plugin."""
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": PLUGIN, "command": str(path)}}


def printing(directory: Path, **status: str) -> dict[str, Any]:
    credential = {"apiVersion": PLUGIN, "kind": "ExecCredential", "status": status}
    (directory / "credential").write_text(json.dumps(credential))
    return program(directory, f"cat {directory}/credential")


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Client]:
    client = Client(await HttpTransport.connect(path))
    try:
        yield client
    finally:
        await client.close()


async def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        await HttpTransport.connect(path)
    return str(caught.value)


async def test_another_context_than_the_current_one_can_be_named(tmp_path: Path) -> None:
    def named(kind: str, **content: Any) -> list[dict[str, Any]]:
        return [{"name": each, kind: {name: f"{text}{each}" for name, text in content.items()}} for each in ("a", "b")]

    content = {
        "clusters": named("cluster", server="https://127.0.0.1:1/"),
        "users": named("user", token="t"),
        "contexts": named("context", cluster="", user=""),
        "current-context": "a",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(content))
    for context, server in (("", "a"), ("b", "b")):
        transport = await HttpTransport.connect(path, context)
        assert transport.server.endswith(f"/{server}")
        await transport.close()
    with pytest.raises(ConfigurationError, match="absent"):
        await HttpTransport.connect(path, "absent")


# --- certificates -------------------------------------------------------------------------------------------------


async def test_a_certificate_file_that_was_rotated_is_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("first")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    async with guarded(authority, clients=authority) as server:
        server.accepts = {"first"}
        async with connected(kubeconfig(tmp_path, user, server.url, **trusting(authority))) as client:
            await client.raw("/version")
            for new, old in zip(authority.issue("second"), (certificate, key), strict=True):
                new.replace(old)
            server.accepts = {"second"}
            await client.raw("/version")
            assert server.seen == ["first", "first", "second"]


async def test_a_certificate_in_the_kubeconfig_itself_that_was_rotated_is_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with guarded(authority, clients=authority) as server:
        server.accepts = {"first"}

        def write(name: str) -> Path:
            pair = zip(("client-certificate", "client-key"), map(str, authority.issue(name)), strict=True)
            return kubeconfig(tmp_path, dict(pair), server.url, **trusting(authority))

        async with connected(write("first")) as client:
            await client.raw("/version")
            write("second")
            server.accepts = {"second"}
            await client.raw("/version")


async def test_a_certificate_that_the_handshake_refuses_is_replaced_before_the_next_call(tmp_path: Path) -> None:
    authority, former = Authority(tmp_path), Authority(tmp_path, "former")
    certificate, key = former.issue("first")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    async with guarded(authority, clients=authority) as server:
        server.accepts = {"second"}
        async with connected(kubeconfig(tmp_path, user, server.url, **trusting(authority))) as client:
            for new, old in zip(authority.issue("second"), (certificate, key), strict=True):
                new.replace(old)
            with pytest.raises(ApiUnavailable):
                await client.raw("/version")
            await client.raw("/version")


async def test_a_pair_that_is_half_rotated_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("first")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    async with guarded(authority, clients=authority) as server:
        server.accepts = {"first"}
        async with connected(kubeconfig(tmp_path, user, server.url, **trusting(authority))) as client:
            authority.issue("second")[0].replace(certificate)
            server.accepts = set()
            with pytest.raises(ApiUnavailable):
                await client.raw("/version")
            server.accepts = {"first"}
            await client.raw("/version")
    assert "certificate and key must belong together" in caplog.text


async def test_a_plugin_that_hands_out_certificates_is_asked_for_the_next_when_one_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def handed_out(name: str) -> dict[str, Any]:
        certificate, key = authority.issue(name)
        return printing(tmp_path, clientCertificateData=certificate.read_text(), clientKeyData=key.read_text())

    async with guarded(authority, clients=authority) as server:
        server.accepts = {"first"}
        async with connected(kubeconfig(tmp_path, handed_out("first"), server.url, **trusting(authority))) as client:
            await client.raw("/version")
            handed_out("second")
            await client.raw("/version")
            server.accepts = {"second"}
            await client.raw("/version")
            assert server.seen == ["first", "first", "first", "second"]


async def test_a_watch_that_is_refused_leads_to_the_next_token(tmp_path: Path) -> None:
    authority, request = Authority(tmp_path), Request(path="/api/v1/pods", query={"watch": "true"}, seconds=10.0)
    async with guarded(authority) as server:
        server.accepts = {"Bearer second"}
        user = printing(tmp_path, token="first")
        transport = await HttpTransport.connect(kubeconfig(tmp_path, user, server.url, **trusting(authority)))
        try:
            printing(tmp_path, token="second")
            found = []
            for _ in range(3):
                async with transport.stream(request) as answer:
                    found.append(answer.status)
        finally:
            await transport.close()
        assert found == [401, 200, 200]
        assert server.seen == ["Bearer first", "Bearer second", "Bearer second"]


async def test_a_connection_that_breaks_off_is_no_reason_to_ask_for_another_token(tmp_path: Path) -> None:
    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    user = printing(tmp_path, token="t")
    plugin = tmp_path / "plugin"
    plugin.write_text(plugin.read_text() + f"echo >> {tmp_path}/asked\n")
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    listener = await asyncio.start_server(breaking, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener, connected(kubeconfig(tmp_path, user, url, **trusting(authority))) as client:
        with pytest.raises(ApiUnavailable, match="broke"):
            await client.raw("/version")
    assert (tmp_path / "asked").read_text() == "\n"


async def test_an_authority_without_key_identifier_is_trusted_where_python_is_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_strictly(monkeypatch)
    authority = Authority(tmp_path)
    async with guarded(authority) as server:
        server.accepts = {"Bearer a"}
        async with connected(kubeconfig(tmp_path, {"token": "a"}, server.url, **trusting(authority))) as client:
            await client.raw("/version")


# --- tokens -------------------------------------------------------------------------------------------------------


async def test_the_newline_at_the_end_of_a_token_file_is_no_part_of_the_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    token = tmp_path / "token"
    token.write_text("abc\n")
    async with guarded(authority) as server:
        server.accepts = {"Bearer abc"}
        user = {"tokenFile": str(token)}
        async with connected(kubeconfig(tmp_path, user, server.url, **trusting(authority))) as client:
            await client.raw("/version")
            token.write_text("def\n")
            server.accepts = {"Bearer def"}
            await client.raw("/version")


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("\n", "is empty"), ("a\nb\n", "line break"), ("gr\u00fc\u00dfe", "characters")],
)
async def test_a_token_that_can_be_none_is_refused_with_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "token").write_text(text)
    path = kubeconfig(tmp_path, {"tokenFile": str(tmp_path / "token")})
    told = await refusal(path)
    assert said in told
    assert f"--kubeconfig {path}" in told


async def test_the_token_of_a_pod_that_cannot_be_read_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setattr("volplane.kube.kubeconfig._IN_CLUSTER", tmp_path)
    loader = "kubernetes.aio.config.incluster_config"
    monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    (tmp_path / "token").mkdir()
    with pytest.raises(ConfigurationError, match="automountServiceAccountToken"):
        await HttpTransport.connect()


async def test_the_token_of_a_pod_that_vanishes_is_used_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr("volplane.kube.kubeconfig._IN_CLUSTER", tmp_path)
    loader = "kubernetes.aio.config.incluster_config"
    authority = Authority(tmp_path, "ca")
    token = tmp_path / "token"
    token.write_text("one\n")
    monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(authority.file))
    async with guarded(authority) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        server.accepts = {"bearer one"}
        client = Client(await HttpTransport.connect())
        try:
            token.unlink()
            await client.raw("/version")
            server.accepts = {"bearer two"}
            with pytest.raises(ApiUnavailable):
                await client.raw("/version")
            monkeypatch.setattr("volplane.kube.credentials._RENEW_SECONDS", 0.0)
            token.write_text("two")
            await client.raw("/version")
        finally:
            await client.close()


# --- plugins ------------------------------------------------------------------------------------------------------


async def test_a_plugin_that_hangs_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0.3, 3.0, 30.0):  # Until the plugin has had the time to begin.
        monkeypatch.setattr("volplane.kube.credentials._PLUGIN_SECONDS", seconds)
        told = await refusal(kubeconfig(tmp_path, program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")))
        assert f"exec plugin {tmp_path}/plugin did not end within {seconds:g} s and was killed" in told
        if (tmp_path / "pid").exists():
            break
    assert "run it by hand" in told
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'no login' >&2; exit 3", "failed with exit code 3 and said: no login"),
        ("echo hello", "printed no ExecCredential"),
        ("yes", "printed no ExecCredential, but more than 1048576 bytes"),
        ("yes no login | head -c 3000000 >&2; exit 3", "failed with exit code 3 and said: "),
        (
            'echo \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{}}\'',
            "gave neither a token nor clientCertificateData",
        ),
        (
            'echo \'{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"","status":{"token":"a"}}\'',
            "the kubeconfig asks for client.authentication.k8s.io/v1",
        ),
    ],
)
async def test_a_plugin_that_gives_nothing_is_an_error_that_says_why(tmp_path: Path, text: str, said: str) -> None:
    assert said in await refusal(kubeconfig(tmp_path, program(tmp_path, text)))


async def test_a_plugin_that_is_not_there_is_an_error_with_its_hint(tmp_path: Path) -> None:
    plugin = {"apiVersion": PLUGIN, "command": "/nowhere/aws-login", "installHint": "pip install aws-login"}
    told = await refusal(kubeconfig(tmp_path, {"exec": plugin}))
    assert "exec plugin /nowhere/aws-login cannot be run: No such file or directory; pip install aws-login" in told


async def test_a_plugin_is_told_about_the_cluster_if_it_asks(tmp_path: Path) -> None:
    user = printing(tmp_path, token="abc")
    command = tmp_path / "plugin"
    command.write_text(command.read_text() + f'\necho "$KUBERNETES_EXEC_INFO" > {tmp_path}/told\n')
    user["exec"]["provideClusterInfo"] = True
    async with connected(kubeconfig(tmp_path, user)):
        spec = json.loads((tmp_path / "told").read_text())["spec"]
    assert spec == {"interactive": False, "cluster": {"server": "https://127.0.0.1:1"}}


# --- what is sent ---------------------------------------------------------------------------------------------------


async def heads(tmp_path: Path, user: dict[str, Any]) -> list[str]:
    """The lines before the body of a request to a server without TLS."""
    got: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend((await reader.readuntil(b"\r\n\r\n")).decode().splitlines())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with (
        server,
        connected(kubeconfig(tmp_path, user, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as c,
    ):
        await c.raw("/version")
    return got


async def test_whom_the_user_acts_as_is_told_with_every_request(tmp_path: Path) -> None:
    """As `kubectl --as` does: without it everything is done with the rights of the user."""
    acting = {
        "as": "system:serviceaccount:ops:jürgen",
        "as-uid": "17",
        "as-groups": ["viewers", "ops"],
        "as-user-extra": {"example.com/scopes": ["view", "list"]},
    }
    assert [line for line in await heads(tmp_path, acting) if "mpersonate" in line] == [
        "impersonate-User: system:serviceaccount:ops:jürgen",
        "impersonate-Uid: 17",
        "impersonate-Group: viewers",
        "impersonate-Group: ops",
        "impersonate-Extra-example.com%2Fscopes: view",
        "impersonate-Extra-example.com%2Fscopes: list",
    ]


@pytest.mark.parametrize("kind", ["token", "tokenFile", "exec"])
async def test_nothing_secret_is_sent_to_a_server_without_tls(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("S3CRET")
    user = {
        "token": {"token": "S3CRET"},
        "tokenFile": {"tokenFile": str(tmp_path / "token")},
        "exec": program(tmp_path, f"touch {tmp_path}/asked; cat {tmp_path}/credential"),
    }[kind]
    assert not [line for line in await heads(tmp_path, user) if "authorization" in line.lower() or "S3CRET" in line]
    assert "S3CRET" not in caplog.text
    if kind == "exec":
        assert not (tmp_path / "asked").exists()
    else:
        assert "has no TLS: the token is not sent there" in caplog.text


async def test_a_password_of_a_proxy_is_not_told(tmp_path: Path) -> None:
    told = await refusal(kubeconfig(tmp_path, {"token": "a"}, **{"proxy-url": "socks5://me:S3CRET@127.0.0.1:1080"}))
    assert "the proxy-url of the kubeconfig is 'socks5://127.0.0.1:1080'" in told


async def test_a_proxy_of_another_kind_is_refused_at_once(tmp_path: Path) -> None:
    told = await refusal(kubeconfig(tmp_path, {"token": "a"}, **{"proxy-url": "socks5://127.0.0.1:1080"}))
    assert "only http:// and https:// are supported" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no kubeconfig: it is empty"),
        ("- a", "is no kubeconfig: it holds a list, expected a mapping with clusters, contexts, users"),
        ("{current-context: a, clusters: 7}", "is no kubeconfig: clusters is a number, expected a list"),
        ("{current-context: a, contexts: [{name: a, context: x}]}", "contexts[0].context is text, expected a mapping"),
        (f"{{current-context: 0x{'f' * 5000}}}", "current-context is a number, expected the name of a context"),
        ("{current-context: 7}", "current-context is a number, expected the name of a context"),
        ("{server: 7}", "clusters[0].cluster.server is a number, expected text"),
        ("{user: {exec: {command: [x], apiVersion: v1}}}", "exec needs `command` and `apiVersion`, both text"),
        ("{user: {exec: {command: x, apiVersion: v1, args: 7}}}", "users[0].user.exec.args is a number"),
        ("{user: {exec: {command: x, apiVersion: v1, env: [x]}}}", "env is not a list of mappings with name and value"),
        ("{user: {exec: /bin/x}}", "users[0].user.exec is text, expected a mapping"),
        ("{user: {as: 7}}", "as is a number, expected text"),
        ("{user: {as: x, as-groups: admins}}", "as-groups is text, expected a list"),
        ("{user: {as: x, as-groups: [7]}}", "as-groups is a number, expected text"),
        ("{user: {as: x, as-user-extra: {scopes: view}}}", "as-user-extra.scopes is text, expected a list"),
        ('{user: {as: "a\\r\\nb"}}', "as is 'a\\r\\nb', expected text without line breaks"),
        ("{user: {as-groups: [admins]}}", "as-uid, as-groups and as-user-extra need `as`, the user to act as"),
    ],
)
async def test_a_file_of_another_shape_is_said_by_its_key(tmp_path: Path, text: str, said: str) -> None:
    given = yaml.safe_load(text)
    if isinstance(given, dict) and not set(given) - {"server", "user"}:
        names = {"cluster": "a", "user": "a"}
        cluster = {"server": given.get("server", "https://127.0.0.1:1")}
        given = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": names}],
            "clusters": [{"name": "a", "cluster": cluster}],
            "users": [{"name": "a", "user": given.get("user", {})}],
        }
        text = yaml.safe_dump(given)
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    told = await refusal(file)
    assert said in told
    assert f"{file}" in told

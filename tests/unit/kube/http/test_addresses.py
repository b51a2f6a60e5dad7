"""Addresses of servers, and whether the proxy of the environment is between us and them."""

from __future__ import annotations

import socket
import ssl

import pytest

from volplane.kube.http.route import Address, _socket, client_context, proxy_from_environment

VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


def parsed(url: str) -> Address:
    return Address.parse(url, what="the server")


@pytest.mark.parametrize(
    ("url", "host", "authority", "name"),
    [
        ("https://[fe80::1%25eth0]:6443", "fe80::1%eth0", "[fe80::1]:6443", "fe80::1"),
        ("https://[fe80::1%eth0]", "fe80::1%eth0", "[fe80::1]", "fe80::1"),
        ("https://[2001:db8::1]/prefix", "2001:db8::1", "[2001:db8::1]", "2001:db8::1"),
        ("https://api.example.com.:6443", "api.example.com.", "api.example.com.:6443", "api.example.com"),
        ("HTTPS://API.example.com", "api.example.com", "api.example.com", "api.example.com"),
        ("https://b\u00fccher.example", "xn--bcher-kva.example", "xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_host_is_looked_up_with_its_zone_and_dot_and_certified_without(
    url: str, host: str, authority: str, name: str
) -> None:
    address = parsed(url)
    assert (address.host, address.authority, address.name) == (host, authority, name)


def test_a_password_in_an_address_is_not_shown() -> None:
    address = parsed("https://me:S3CRET@example.com:6443")
    assert (address.url, address.user) == ("https://example.com:6443", "me:S3CRET")


def test_an_address_with_a_zone_can_be_looked_up() -> None:
    found = socket.getaddrinfo(parsed("https://[fe80::1%25lo]:6443").host, 6443, type=socket.SOCK_STREAM)
    assert found[0][4][0].startswith("fe80::1")


@pytest.mark.parametrize(
    ("server", "no_proxy", "proxied"),
    [
        ("https://api.example.com:6443", "", True),
        ("https://api.example.com:6443", "*", False),
        ("https://api.example.com:6443", "example.com", False),
        ("https://api.example.com:6443", "EXAMPLE.com", False),
        ("https://api.example.com:6443", ".example.com", False),
        ("https://api.example.com:6443", "*.example.com", False),
        ("https://example.com:6443", "example.com", False),
        ("https://example.com:6443", ".example.com", True),
        ("https://badexample.com:6443", "example.com", True),
        ("https://api.example.com:6443", "example.com:6443", False),
        ("https://api.example.com:6443", "example.com:443", True),
        ("https://api.example.com", "other, api.example.com:443 ,", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443", True),
        ("https://10.1.2.3:6443", "10.1.2.4,fd00::/8", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]:6443", "fd00::2", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("https://localhost:6443", "", False),
        ("https://localhost.example:6443", "localhost", True),
        ("http://api.example.com", "", False),
    ],
)
def test_a_proxy_of_the_environment_is_used_as_client_go_does(
    monkeypatch: pytest.MonkeyPatch, server: str, no_proxy: str, *, proxied: bool
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://lower:1")
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert proxy_from_environment(parsed(server)) == ("http://proxy:3128" if proxied else "")


def test_a_socket_notices_that_what_it_sends_is_not_acknowledged() -> None:
    with _socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_an_authority_may_be_an_intermediate_one() -> None:
    flags = client_context().verify_flags
    assert flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert not flags & ssl.VERIFY_X509_STRICT

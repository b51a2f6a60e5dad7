"""Messages about an API server that cannot be reached, or refuses our credentials: its address, and what to check.

Pure: from the exceptions of connections, and from answers with 401 or 403.
"""

from __future__ import annotations

import errno
import socket
import ssl

from volplane.errors import ApiError, ApiUnavailable
from volplane.kube.http.connection import BrokenOff, NotHttp
from volplane.kube.http.route import ProxyError

__all__ = ["refused", "silent", "unreachable", "why_unreachable"]


def unreachable(server: str, call: str, error: BaseException) -> ApiUnavailable:
    """Return the error for a call (method and path) that had no answer."""
    why = why_unreachable(error)
    return ApiUnavailable(f"the API server {server} cannot be reached: {why} ({call} failed)", status=0)


def refused(server: str, error: ApiError) -> ApiError:
    """Return the error with the server's address and what to check, for a 401 or 403."""
    match error.status:
        case 401:
            advice = (
                "check the user of the kubeconfig (token, client certificate, exec plugin), whether it is of this "
                "cluster, and whether it has expired"
            )
            text = f"the API server {server} does not accept these credentials (401): {error}; {advice}"
        case 403:
            advice = "grant it that right, or take another user in the kubeconfig; `volplane manifests` has the rights"
            text = f"the API server {server} forbids it (403): {error}; {advice}"
        case _:
            return error
    return ApiError(text, status=error.status, reason=error.reason)


def why_unreachable(error: BaseException) -> str:
    """Explain why there was no answer, and what to check."""
    told = _plain(error)
    match error:
        case ProxyError():
            return f"the proxy gives no way to it ({told}); check proxy-url in the kubeconfig"
        case socket.gaierror():
            return f"its name is not known ({told}); check the name in the kubeconfig, and the DNS of this machine"
        case BrokenOff():
            return "it broke the connection off before it answered; check whether it is starting or overloaded"
        case NotHttp():
            return f"what it answers is not HTTP ({told}); check that this is its port"
    return _of_system(error)


def _of_system(error: BaseException) -> str:
    """Explain an error of the operating system or of TLS."""
    told = _plain(error)
    match error:
        case ssl.SSLCertVerificationError():
            return _untrusted(error)
        case ssl.SSLError():
            return f"TLS fails ({told}); check that this is its https port, and the client certificate"
        case OSError(errno=errno.ECONNREFUSED):
            return "nothing listens there (connection refused); check that it runs, and its port"
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return f"no way leads there ({told}); check its address, the network, VPN or proxy"
        case OSError(errno=errno.ETIMEDOUT):
            return silent("the time that the network allows")
        case OSError(errno=errno.ECONNRESET | errno.EPIPE):
            return f"it broke the connection off ({told}); check that this is its port, and TLS on both sides"
    return f"{told}; check its address in the kubeconfig"


def silent(within: str) -> str:
    """Explain why there was no answer within some time."""
    return f"it had no answer within {within}; check its address, firewalls, VPN or proxy, and whether it is overloaded"


def _untrusted(error: Exception) -> str:
    why = getattr(error, "verify_message", "") or _plain(error)
    return f"its certificate is not trusted ({why}); check certificate-authority-data and the name in the kubeconfig"


def _plain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

"""One exchange of HTTP with a port of a pod, by way of the API server: pods/portforward, over a WebSocket.

The first byte of a message is its channel: 0 is data, 1 the text of an error; each begins with the number of the port.
Source: `k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`. The `kubernetes` package can do it too, but blocks.
"""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace

import aiohttp
import httptools

from volplane.errors import ApiError, ApiForbidden, ApiUnavailable
from volplane.kube.credentials import Identity
from volplane.kube.http.route import Route
from volplane.kube.transport import Response


async def exchange(
    route: Route, identity: Identity, pod: str, port: int, request: bytes, *, seconds: float
) -> Response:
    """Send a request to a port of the pod `namespace/name`, and return the answer.

    Raises ApiForbidden without the right to forward ports, ApiUnavailable if no whole answer comes.
    """
    namespace, _, name = pod.partition("/")
    server, proxy = route.server, route.proxy
    path = f"{server.path}/api/v1/namespaces/{namespace}/pods/{name}/portforward?ports={port}"
    headers: dict[str, str] = {}
    body, whole, begun = bytearray(), asyncio.Event(), set[int]()
    parser = httptools.HttpResponseParser(
        SimpleNamespace(
            on_header=lambda key, value: headers.update({key.decode("latin-1").lower(): value.decode("latin-1")}),
            on_body=body.extend,
            on_message_complete=whole.set,
        )
    )
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession(trust_env=False) as session,
            session.ws_connect(
                f"{server.scheme}://{server.authority}{path}",
                protocols=("v4.channel.k8s.io",),
                headers={"Authorization": identity.authorization} if identity.authorization else {},
                ssl=identity.tls if isinstance(identity.tls, ssl.SSLContext) else True,
                server_hostname=route.server_name or None,
                proxy=f"{proxy.scheme}://{proxy.authority}" if proxy is not None else None,
                proxy_auth=aiohttp.BasicAuth(*proxy.user.split(":", 1)) if proxy is not None and proxy.user else None,
            ) as socket,
        ):
            await socket.send_bytes(b"\0" + request)
            async for message in socket:
                channel, data = message.data[0], message.data[1:]
                if channel not in begun:
                    begun.add(channel)
                elif channel:
                    raise ApiUnavailable(f"pod {pod}: {data.decode(errors='replace')}", status=0)
                else:
                    parser.feed_data(data)
                if whole.is_set():
                    return Response(parser.get_status_code(), headers, bytes(body))
    except TimeoutError:
        raise ApiUnavailable(f"pod {pod} has not answered on port {port} within {seconds:g} s", status=0) from None
    except aiohttp.WSServerHandshakeError as error:
        raise (ApiForbidden if error.status == 403 else ApiError)(
            f"the API server forwards no port of pod {pod} ({error.status})", status=error.status
        ) from None
    except (OSError, aiohttp.ClientError, httptools.HttpParserError, TypeError, IndexError) as error:
        raise ApiUnavailable(f"the port-forward to pod {pod} failed: {error}", status=0) from error
    raise ApiUnavailable(f"pod {pod} broke off before it had answered on port {port}", status=0)

"""HTTP/1.1 connections of the API client: sockets, TLS, proxies, a pool and the transport over it."""

"""A Kubernetes API server: the kinds that storage needs, with the validation, defaulting and admission of Kubernetes
1.36.

`server.ApiServer` answers requests without sockets; `http.serve` puts it on a socket. The commands, the in-process
transport of tests and the simulator call it. It imports nothing of volplane but quantities, so that a mistake in the
client cannot be hidden by the same mistake in the server. It never runs controllers: nothing is bound, scheduled or
garbage-collected here.
"""

"""Drivers: configured backends, and the way of every hook call from a request to its checked result.

`discovery` finds installed plugins, `contract` refuses wrong ones, `loading` makes drivers of the rest, and `registry`
starts, probes and stops them. A call enters at `HookCalls.call` and runs in a thread of its driver (`executor`), goes
through pluggy (`driver`) and returns a result of the promised type or raises a `BackendError`. Decisions get only
`DriverView`. Code that wires or runs a control plane may call this package. It imports nothing of the duties, and reads
no Kubernetes objects but the Secrets that options name.
"""

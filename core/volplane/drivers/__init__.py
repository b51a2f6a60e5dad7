"""Drivers: configured backends, and the way of every hook call from a request to its checked result.

`discovery` finds installed plugins, `contract` refuses wrong ones, `loading` makes drivers of the rest, and `registry`
starts, probes and stops them. A call enters at `DriverRegistry.call`, runs in a thread of its driver (`executor`),
passes pluggy (`driver`) and leaves with a result of the promised type (`results`) or a `BackendError`. Decisions get
`DriverView` only. Whoever wires or runs a control plane may call this package; it imports nothing of the controllers
and their duties, and reads no Kubernetes objects but the Secrets that options name.
"""

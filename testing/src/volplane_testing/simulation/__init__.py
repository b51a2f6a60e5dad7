"""Deterministic simulation: one seed is one schedule of actions and faults, run against the real controllers.

A run has an API server, one or two controller processes, a model of two nodes, and simulated or external backends, all
in one event loop of virtual time. Invariants are checked after every write and every effect on an asset, and again when
nothing moves any more. A schedule that fails is shortened to the actions and faults that it needs. `volplane sim` and
`run_seed` call this package; it calls the controllers only through `volplane_testing.control_plane`, and never touches
a real cluster, a socket or the wall clock.
"""

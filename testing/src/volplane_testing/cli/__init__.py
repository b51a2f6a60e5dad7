"""The commands of the testing kit: check, sim and new-backend.

The core finds them by the entry-point group `volplane.commands`. They call the conformance suite and the simulation, and
of the core's commands they use only the framework. None of them contacts a cluster.
"""

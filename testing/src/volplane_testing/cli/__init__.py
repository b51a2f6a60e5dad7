"""The commands of the testing kit: check, sim and new-backend.

The core finds them by the entry-point group `volplane.commands`. They call the conformance suite and the simulation; of
the commands of the core they use only the framework. None of them contacts a cluster.
"""

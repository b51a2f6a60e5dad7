"""The controllers of StatefulSets, Deployments and ReplicaSets, and the garbage collector of what these own.

On a real cluster they are part of kube-controller-manager. Names, order of writes and words are its own, and recordings
of it are replayed in tests/integration/test_workloads.py.
"""

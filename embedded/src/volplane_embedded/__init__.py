"""A Kubernetes-compatible cluster in one process: API server, scheduler, kubelet and sandbox. For development and
tests.

The testing kit and the commands `apiserver`, `dev` and `demo` run it. It never runs in a production cluster.
"""

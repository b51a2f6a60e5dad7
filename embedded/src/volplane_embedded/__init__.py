"""A Kubernetes-compatible cluster in one process, for development and tests: API server, scheduler, kubelet, sandbox.

The commands `apiserver`, `dev` and `demo`, the testing kit and tests run it. It never runs in a production cluster: the
API server has one user, keeps everything in memory or in one SQLite file, and the kubelet runs pods as processes of the
machine it runs on.
"""

"""The kubelet of the embedded cluster: it runs the pods of nodes that all are this machine, as sandboxed processes.

The modules have the names of pkg/kubelet: `kubelet` (pods to workers), `pod_workers` (one pod), `pod_actions` (what to
do next, pure), `volume_manager`, `container_runtime`, `status`, `node_status`, `logs`. `local_nodes` starts it. It
never pulls images, never runs privileged containers, and writes nothing outside of its state directory and the pods'
volumes.
"""

"""Runs one command in namespaces of its own, with its volumes mounted and the rest of the host read-only.

The kubelet starts `python -m volplane_embedded.sandbox` (`__main__`, the spawner) once; it forks a `monitor` for each
command, which starts the command's `init`. They talk in the structs of `spec`. It never runs a command without a
sandbox: where the kernel refuses the namespaces, it reports that and nothing runs.
"""

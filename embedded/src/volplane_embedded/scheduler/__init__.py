"""The scheduler of the embedded cluster: one pod at a time, by the rules of kube-scheduler that concern volumes.

`scheduler` runs the loop, `scheduling` decides (pure), `volume_binding` matches claims with volumes (pure).
`local_nodes` starts it. It never preempts pods and never weighs cpu or memory.
"""

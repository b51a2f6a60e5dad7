"""The kubelet of the embedded cluster: volumes, containers and status of the pods bound to the nodes of this
machine.
"""

"""Attaching: which volume is to be on which node, and the attachments of our drivers.

Two controllers. attach-detach compares pods and nodes with the VolumeAttachments: it creates and deletes those, and
keeps the list `volumesAttached` of each node. attacher serves the VolumeAttachments of our drivers with the hooks
`attach` and `detach`. Beside a stock kube-controller-manager only the second runs. Neither relies on the other being
ours. Source: pkg/controller/volume/attachdetach of Kubernetes, and kubernetes-csi/external-attacher.
"""

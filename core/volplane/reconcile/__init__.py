"""Which duty is next for a claim or a volume, and explanations of claims, volumes, classes, attachments and pods.

The runners call `ClaimReconciler` and `VolumeReconciler` through the assembly; `explain` and `explain_pod` return in
words what they would decide. It picks among binding, the duties and `external`, and never calls a hook or the API
server.
"""

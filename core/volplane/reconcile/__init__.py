"""Which duty is next: the decision about a claim, the decision about a volume, and the explanation of a claim.

The runners call `ClaimReconciler` and `VolumeReconciler` through the assembly; `explain` returns in words what they
would decide. It picks among binding, the duties and `external`, and never calls a hook or the API server.
"""

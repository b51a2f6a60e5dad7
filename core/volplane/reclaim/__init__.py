"""Reclaiming: what happens to the asset of a released volume, deletion or scrub, and how drain gives volumes up.

`delete` and `recycle` decide, `operation` makes the live checks and calls the hooks, `scrub_pod` is the body of the
pod that erases. Called by `reconcile` and `external`, once a live read in the same pass has shown that the claim is
gone. It never touches a volume that a living claim is bound to.
"""

"""Provisioning: from an unbound claim to the volume that is made for it.

`decide` returns the next action, `operation` makes the live checks and calls the hook, `persistentvolume` is the body
of the volume. Called by `reconcile` and, beside a stock controller-manager, by `external`. It never binds, and never
deletes an asset: what must go is handed to `intents.discard`.
"""

"""The leak check: the assets of a driver against the claims and volumes of the cluster; repair and adoption on demand.

`comparison` is pure, `check` runs it every 10 minutes, `repair` deletes orphans and takes assets over after a restore,
only when a person asks. The assembly builds them, commands ask them. No decision depends on it.
"""

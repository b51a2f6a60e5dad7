"""Operations: hook calls that run beside the reconciling.

The package starts what a `Run` names: one operation at a time per asset, within the limits of its driver, again after a
failure with the delays of `volplane._delays`. Drivers, the packages of the duties and the runner call it. It never
decides, never talks to the API server, and never calls a hook itself: it only awaits the work that a handler returned.
"""

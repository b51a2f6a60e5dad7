"""The client side of the Kubernetes API: objects, client, caches and the reflectors that fill them, Events, Leases.

Every package above may use it. It never decides what to write, and it retries nothing but lists, watches and Events: a
caller whose call failed knows whether it still makes sense. Transport (HTTP, or in process) and random numbers are
passed in, and time is the event loop's, so that a simulation controls all three.
"""

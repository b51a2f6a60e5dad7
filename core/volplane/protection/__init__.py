"""In-use protection: the two finalizers that keep claims and volumes while somebody uses them.

Two controllers of their own, built by the assembly; `handlers` queues what a change may concern. It never deletes
anything: it adds a finalizer to a living object, and removes it from a terminating one that is proven unused.
"""

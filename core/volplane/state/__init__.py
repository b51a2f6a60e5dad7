"""What decisions see: the cached objects with their indexes, views of drivers, and the progress of operations.

`ClusterState` is passed to every decision. Event handlers and operations change it, decisions only read it; it holds
nothing that can reach the API server or a backend. `records` are the annotations in which objects keep what was
started, and what others write over them. The packages of the duties and the roles import it.
It never decides, and it starts nothing: a handler only queues keys.
"""

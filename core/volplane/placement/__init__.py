"""On which node the volumes of distributed drivers are, and how much room there is.

`assign` and `volumes` are the assigner: pure decisions about claims and volumes over a `PlacementState`, which knows
the nodes (`nodes`), what is promised on them (`usage`) and which of them to take (`choose`).
"""

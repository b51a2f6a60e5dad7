"""Intents: the record on a claim that an asset may be in the making, from its first write to its end.

The duties share it. `record` writes and ends the record, `term` lets a new leader go on with it, `conflict` waits where
somebody else writes it. `requests` builds the requests of hooks, `operation` is what every operation works with,
`discard` the operation that deletes an asset nobody wants. `owner` and `node` say which driver and which process work
on an asset, `finalizers` which finalizers a volume has, `bootstrap` makes the sealing key. It never makes an asset for
a volume, and never deletes one that a volume holds.
"""

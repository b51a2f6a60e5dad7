"""Intents: the record on a claim that an asset may exist for it, from its first write to its end.

The duties share it. `record` writes and ends the record, lets a new leader go on with it, and waits if others write
it. `ownership` finds the driver and the process that work on an asset, `requests` builds the requests of hooks,
`operation` is what every operation works with, and the one that deletes an unwanted asset, `bootstrap` makes the
sealing key. It never makes an asset for a volume, and never deletes one that a volume holds.
"""

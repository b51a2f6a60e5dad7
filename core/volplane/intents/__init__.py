"""Intents: the record on a claim that an asset may be in the making, from its first write to its end.

Here stand what all duties need of it: where the asset goes (`segments`), how hooks are asked for it (`requests`), how
an intent ends (`settle`), the operation that deletes an asset nobody wants (`discard`), and what every operation
works with (`operation`). The duties call it. It never makes an asset for a volume, and never deletes one that a
volume holds.
"""

"""Intents: the record on a claim that an asset may be in the making, from its first write to its end.

Here stands what all duties need of it: the record itself, its place and its end (`record`), how hooks are asked for
the asset (`requests`), the operation that deletes an asset nobody wants (`discard`), the finalizers of volumes
(`finalizers`), and what every operation works with (`operation`). The duties call it. It never makes an asset for a
volume, and never deletes one that a volume holds.
"""

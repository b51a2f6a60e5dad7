"""Growing the assets of bound claims, and changing their attributes (VolumeAttributesClass).

`resize` and `modify` decide and are pure, `operation` makes the live checks and calls the hooks, `conditions` are those
of the claim, `stages` puts the progress into words. The node plugin grows the file systems.
"""

"""Growing the assets of bound claims, and changing their attributes (VolumeAttributesClass)."""

"""The trash: the deletion of a released volume is postponed, and the volume can be given to a new claim.

`choice` says how long volumes are kept, by class, claim and volume; `decide` what becomes of a volume whose claim is
gone. Both are pure. `volplane.state.records.trashed` answers whether a volume is in the trash, and until when. Nothing
of this runs for volumes without it. docs/explanation/trash.md says why it is as it is.
"""

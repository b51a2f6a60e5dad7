"""Binding: which volume a claim gets, and the writes that bind or unbind the two, one at a time.

Pure functions and indexes over objects of the caches. `reconcile` and the duties call them, the embedded scheduler
uses the matching. It never provisions, and never writes: it returns actions.
"""

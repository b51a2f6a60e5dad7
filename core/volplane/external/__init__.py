"""The decisions beside a stock kube-controller-manager, which binds, protects and writes every phase.

`reconcile` calls it where this process is not the binder. It decides by the packages provision and reclaim, and never
writes a status, a binding, or an annotation of the binder.
"""

"""The scheduler of the embedded cluster: one pod at a time, by the rules of kube-scheduler that concern volumes."""

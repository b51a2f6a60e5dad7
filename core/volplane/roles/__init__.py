"""The decisions of claims and volumes in each role: whole control plane, beside a stock one, one node."""

"""The page of `volplane ui`: what a cluster's volumes wait for, live, with the rights of the user who looks.

`watched` lists and watches, `told` asks the controller that leads, `rows`, `picture` and `tables` are pure and say
what is shown, `server` gives it to a browser on this machine. docs/explanation/page.md says why so.
"""

"""The commands of the core, one module each, and what they share.

`main` is the entry point of the script `volplane`; commands of other distributions may use `volplane.cli.framework`
only. Commands parse options, build a process or ask a running one, and print. They never decide anything about volumes.
"""

"""What commands of every distribution are built from: console, shared options, event loop, the HTTP pages of a process.

Commands of `volplane`, `volplane-embedded` and `volplane-testing` use it. Nothing here knows a command.
"""

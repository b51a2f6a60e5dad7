"""What commands of every distribution are built from: console, shared options, event loop, HTTP endpoints of a process.

Commands of `volplane`, `volplane-embedded` and `volplane-testing` import it. It never imports a command.
"""

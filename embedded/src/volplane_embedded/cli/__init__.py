"""The commands apiserver, dev and demo. The core finds them through the entry-point group `volplane.commands`.

They use `volplane.cli.framework` for output, options and the event loop, and nothing else of the core's commands.
"""

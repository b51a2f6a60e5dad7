"""A volplane backend: volumes as image files, used as loop devices.

volplane loads `LoopFilesBackend` by its entry point. The package imports only public names of `volplane`, and changes
nothing outside of its root but loop devices of its own images.
"""

from volplane_loopfiles.backend import LoopFilesBackend

__all__ = ["LoopFilesBackend"]

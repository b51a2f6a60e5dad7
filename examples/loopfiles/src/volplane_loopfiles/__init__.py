"""A volplane backend: volumes as image files, used as loop devices."""

from volplane_loopfiles.backend import LoopFilesBackend

__all__ = ["LoopFilesBackend"]

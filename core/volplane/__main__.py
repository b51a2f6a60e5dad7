"""Where the command `volplane` starts, also as `python -m volplane`.

Until everything is imported, Ctrl-C ends the process at once and prints nothing. `volplane.cli.main` runs the command.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the command line of this process, and end it."""
    signal.signal(signal.SIGINT, _end)
    sys.unraisablehook = _lost
    gc.disable()  # Until the command begins: a tenth of the time of imports would go into looking for their garbage.
    from volplane.cli.main import main as run_command  # noqa: PLC0415 - after the handler is in place

    try:
        code = run_command()
    except KeyboardInterrupt:
        code = INTERRUPTED
    # From here on there is nothing to clean up that the end of the process does not.
    signal.signal(signal.SIGINT, _end)
    sys.exit(code)


def _lost(lost: sys.UnraisableHookArgs) -> None:
    """Send again the SIGINT that came within a finalizer: Python drops exceptions there, and in this hook."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Thread(target=_send_again).start()
    else:
        sys.__unraisablehook__(lost)


def _send_again() -> None:
    """Send SIGINT to the main thread as soon as it has left the hook."""
    main_thread = threading.main_thread().ident or 0
    while True:
        frame = sys._current_frames().get(main_thread)  # noqa: SLF001 - no public function shows other threads' frames
        while frame is not None and frame.f_code is not _lost.__code__:
            frame = frame.f_back
        if frame is None:
            break
        time.sleep(0.01)
    signal.pthread_kill(main_thread, signal.SIGINT)


def _end(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()

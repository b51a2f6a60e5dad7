"""`python -m volplane_embedded.sandbox FD`: start sandboxes for the node agent at the other end of socket FD."""

from __future__ import annotations

import sys

from volplane_embedded.sandbox.spawner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))

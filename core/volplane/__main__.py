"""`python -m volplane` is the command `volplane`."""

import sys

from volplane.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

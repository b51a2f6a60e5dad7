"""`python -m volplane` is the command `volplane`."""

from volplane_main import main

if __name__ == "__main__":
    main()

"""The command line, run as `python -m fedhold`."""

from fedhold.cli import main

if __name__ == "__main__":
    main()

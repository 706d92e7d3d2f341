"""``python -m flowmx``: the command line."""

import sys

from flowmx.cli import main

if __name__ == "__main__":
    sys.exit(main())

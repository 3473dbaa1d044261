"""``python -m repgraph``: the same as the ``repgraph`` command."""

import sys

from repgraph.cli import main

if __name__ == "__main__":
    sys.exit(main())

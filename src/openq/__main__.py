"""`python -m openq` is the command `openq`."""

import sys

from openq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

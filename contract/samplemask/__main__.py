"""`python -m samplemask`: the command line where its script is not on the path."""

import sys

from samplemask.cli import main

sys.exit(main())

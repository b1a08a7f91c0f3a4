"""`python -m trainjob.cli` is `tj`."""

import sys

from trainjob.cli.main import main

sys.exit(main())

"""`python -m foreword` is the command `foreword`."""

import sys

from foreword.cli.main import main

sys.exit(main())

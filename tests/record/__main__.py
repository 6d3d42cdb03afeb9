"""`python -m rtk.tests.record [FOLDER]`: rewrite the record of behaviour, or write all outputs out into a folder."""

import sys
import tempfile
from pathlib import Path

from .recording import rewrite, write_out

with tempfile.TemporaryDirectory() as work:
    if len(sys.argv) > 1:
        write_out(Path(sys.argv[1]), Path(work))
    else:
        rewrite(Path(work))

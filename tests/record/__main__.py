"""`python -m rtk.tests.record [FOLDER]`: rewrite the record of behaviour, or write all outputs out into a folder."""

import argparse
import tempfile
from pathlib import Path

from .recording import rewrite, write_out

parser = argparse.ArgumentParser("python -m rtk.tests.record", description=__doc__)
parser.add_argument("folder", nargs="?", type=Path)
folder: Path | None = parser.parse_args().folder
with tempfile.TemporaryDirectory() as work:
    if folder is None:
        rewrite(Path(work))
    else:
        write_out(folder, Path(work))

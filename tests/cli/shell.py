"""Running the real `rtk` as a user does."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

RTK = [sys.executable, "-m", "rtk.cli.main"]


def rtk(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own and give its exit code and output."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [*RTK, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**clean, **(environment or {})},
        timeout=170,
        check=False,
    )

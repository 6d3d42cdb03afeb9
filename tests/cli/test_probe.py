"""`rtk probe` as a user calls it; what ranks do is tested in tests/runners/test_probe.py."""

import json
from pathlib import Path

import pytest

from .shell import rtk, rtk_forked


def test_probe_tells_who_must_start_it() -> None:
    """Outside of a job it says how it is started."""
    done = rtk("probe")
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 8 --no-python rtk probe" in done.stderr
    assert "--processes" in done.stderr


@pytest.mark.parametrize("sizes", ["", "0", "-1", "many", "1,,2", "nan", "inf", "1e99", "16"])
def test_sizes_that_are_none_are_refused(sizes: str) -> None:
    """Messages have 1 kB or more: 16 is no number of MB."""
    done = rtk("probe", "--processes", "2", "--sizes", sizes)
    assert (done.returncode, "--sizes" in done.stderr) == (2, True)


@pytest.mark.wheel("probe")
def test_probe_starts_ranks_here(tmp_path: Path) -> None:
    """With --processes all ranks are processes of this machine, and one document tells of all."""
    file = tmp_path / "probe.json"
    options = ("--sizes", "10kB,20000", "--gemm", "8", "--repeat", "1", "--pairs", "all", "--json", "-o", str(file))
    done = rtk_forked("probe", "--processes", "2", *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert json.loads(file.read_text()) == told
    assert [worker["rank"] for worker in told["workers"]] == ["0", "1"]
    assert [list(link["exchange_s"]) for link in told["links"]] == [["10000", "20000"]]
    assert told["not_comparable"] == ["within a machine"]

"""The papers' tables and figures, theirs beside ours: a file a paper, loaded by `rtk reproduce`."""

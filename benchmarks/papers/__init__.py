"""The papers' tables and figures, made again with rtk: a file a paper, loaded by `rtk reproduce`."""

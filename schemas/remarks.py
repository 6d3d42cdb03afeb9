"""Remarks: what a person may want to know beside a result. `rtk` prints them, without it Python's logging decides."""

import logging

REMARKS = logging.getLogger("rtk")


def remark(text: str) -> None:
    """Say a line for people."""
    REMARKS.info(text)

"""Figures, not tests: scripts that measure, and in `papers/` the papers' tables, which alone are in the wheel."""

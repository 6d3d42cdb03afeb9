"""Timelines and Plans as pictures, and differences in words."""

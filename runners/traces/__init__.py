"""Traces of clusters: readers of other people's formats, and generators."""

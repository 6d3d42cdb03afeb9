"""Readers of the files that settings of a job stand in; one file a format."""

"""Micro-batches per pipeline: exact distribution over pipelines of unlike speed."""

"""Pipelines whose workers hold several virtual stages: the problem, rules and search, bounds, published orders."""

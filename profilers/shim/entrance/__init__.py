"""A folder for PYTHONPATH: Python runs its `sitecustomize` when it starts."""

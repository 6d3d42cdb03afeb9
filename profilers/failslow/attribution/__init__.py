"""How much of a slow-down workers, stages and links are to blame for, out of the times of single operations."""

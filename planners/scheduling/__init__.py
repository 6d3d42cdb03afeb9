"""What every planner stands on: assembling, evaluating and bounding plans."""

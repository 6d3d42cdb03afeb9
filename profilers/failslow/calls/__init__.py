"""Communication calls: where logs of them come from, their period, and groups compared with each other."""

"""Where a job's GPU-hours went: what its log says has happened, and each second of it in one class."""

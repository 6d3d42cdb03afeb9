"""A job on a virtual clock: the coordinator's rules, with workers and machines that are simulated."""

"""The monitor of a running job: which worker, link or machine is slow, from what the workers tell."""

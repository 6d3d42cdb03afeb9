"""A trace, replayed under a policy on a virtual clock that jumps from change to change."""

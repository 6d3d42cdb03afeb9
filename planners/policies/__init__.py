"""Ways of surviving failures and slow parts, for `rtk replay`: one file a policy."""

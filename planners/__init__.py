"""Plans out of Profiles: one published method, one file or folder, named as in its paper."""

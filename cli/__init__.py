"""The door: one file a verb; reads files, calls one function, writes files."""

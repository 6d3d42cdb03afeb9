"""A network in user space whose links can be slowed and broken, for tests and benchmarks on one machine."""

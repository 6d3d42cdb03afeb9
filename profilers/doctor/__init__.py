"""Settings of a job that trains with other frameworks: read, checked against rules, and weighed in GPU-hours."""

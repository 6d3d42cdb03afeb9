"""Rules about settings of a job, each with its source; one file a program whose settings they are about."""

"""`rtk plan best`: which shape of a job is the fastest on a cluster, and what rules the others out."""

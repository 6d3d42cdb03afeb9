"""Series of iteration times out of the logs that training programs write."""

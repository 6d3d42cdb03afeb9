"""What is trained on: rows by number, in an order that needs no memory, read ahead of need."""

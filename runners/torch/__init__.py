"""Plans executed on real ranks with torch."""

"""The ground: the nouns, their JSON, and the small Protocols between the wings."""

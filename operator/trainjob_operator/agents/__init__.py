"""What the agents of all jobs say, and what they are told."""

"""From a staged checkpoint to a committed one: this agent's shares, and what rank 0's agent publishes."""

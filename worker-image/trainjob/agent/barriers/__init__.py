"""report(), barrier() and broadcast_from_rank_zero(): the rules, and rank 0's agent that serves them."""

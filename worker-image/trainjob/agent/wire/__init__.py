"""What travels between agents, and between a rank and its agent."""

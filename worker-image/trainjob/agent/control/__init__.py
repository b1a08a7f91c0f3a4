"""What the agent and the operator say to each other."""

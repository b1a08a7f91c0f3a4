"""Rank 0's agent: how what all agents have stored becomes a checkpoint, and which may wait for that."""

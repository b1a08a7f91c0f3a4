"""What storage holds: runs, checkpoints and their files, as they are read."""

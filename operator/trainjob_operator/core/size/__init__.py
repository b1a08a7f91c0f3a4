"""How many workers there are, and who waits for whom."""

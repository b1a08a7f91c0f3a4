"""What tells ranks that hang from ranks that work."""

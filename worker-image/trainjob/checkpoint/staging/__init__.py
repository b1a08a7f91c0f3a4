"""What an agent keeps of a checkpoint before it is stored."""

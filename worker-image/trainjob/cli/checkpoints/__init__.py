"""`tj checkpoints` and `tj model`."""

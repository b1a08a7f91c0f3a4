"""The commands that speak to a cluster."""

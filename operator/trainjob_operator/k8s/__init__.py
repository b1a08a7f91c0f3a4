"""Kubernetes: its API, its watch, its objects as they are read."""

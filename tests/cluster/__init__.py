"""Real Kubernetes for the tests, made from package registries alone: `python -m cluster` (see `__main__`)."""

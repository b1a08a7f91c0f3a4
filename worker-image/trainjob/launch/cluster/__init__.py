"""The way to a cluster: the API, runs there, their logs and results."""

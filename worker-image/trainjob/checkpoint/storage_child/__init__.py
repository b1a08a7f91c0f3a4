"""The one process of an agent that touches the job's storage."""

"""The operator as a process: settings, logs, metrics, health."""

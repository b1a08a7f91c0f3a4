"""What TrainJob costs, measured on this machine, beside what others cost in the same minutes. `make bench` runs it."""

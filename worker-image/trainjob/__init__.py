"""TrainJob's training side."""

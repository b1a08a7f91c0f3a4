"""The control side of TrainJob: a pure core, a thin shell around it, and the process that hosts both."""

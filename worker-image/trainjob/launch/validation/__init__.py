"""The process that validates a checkpoint beside the training; `handover.validations` is the queue in rank 0."""

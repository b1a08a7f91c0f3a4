"""One turn after the other: which job is looked at, what is seen, what is done."""

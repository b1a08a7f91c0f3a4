"""How a job is shown: the panel, the lines, the words and the tables."""

"""One attempt as its members live it: the join, its start, its end."""

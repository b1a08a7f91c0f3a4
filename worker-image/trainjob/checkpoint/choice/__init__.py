"""Which checkpoint a run goes on from, and what there is to choose from."""

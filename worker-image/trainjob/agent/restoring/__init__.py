"""A checkpoint on its way back to the ranks: from the own staging, a peer or storage."""

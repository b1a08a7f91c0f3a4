"""What a trainer hands to its ranks: settings, the function, the code beside it."""

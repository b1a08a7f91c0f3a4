"""What comes back from a run: results, reports, verdicts, callbacks."""

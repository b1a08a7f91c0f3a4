"""The ranks' processes: how they are started, watched, heard and ended."""

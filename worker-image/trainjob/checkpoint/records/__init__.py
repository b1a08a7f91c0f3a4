"""What is written down of a checkpoint: names, identities, places and manifests."""

"""How a checkpoint comes to exist on storage, and how it goes: shares, manifest, retention."""

"""The local backend: the operator's own loop over processes of this machine."""

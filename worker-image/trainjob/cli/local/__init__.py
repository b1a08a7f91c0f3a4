"""The commands about jobs of this machine: what its registry knows, and what lies in their folders."""

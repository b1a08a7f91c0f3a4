"""Whom the coordinator lets in: certificates, tokens, limits."""

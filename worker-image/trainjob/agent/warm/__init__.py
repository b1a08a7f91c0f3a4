"""Ranks as forks of a warm parent, which has imported what they import.

`starter` is what an attempt asks for processes; `parent` is the client of the warm parent (`session.warm`), `gate` that
of one fork, and `choice` says, without touching anything, when there is one and what it imports.
"""

"""A warm parent that is kept for the next job of this machine (`tj run --keep-warm`): the launcher's side.

`keeper` takes, keeps and ends it, by `line`; `likeness` says which jobs it is for; `note` is what is known of it.
`shared` is the one that the workers of one job have together; `making` starts both. Their own side:
`session.warm.kept`.
"""

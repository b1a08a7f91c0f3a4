"""What this machine remembers of the jobs that ran on it: one folder a job in the user's state folder (XDG).

`records` reads and writes them, `recorder` keeps them up while a job runs, `output` keeps what its ranks wrote. A
record is a convenience: whatever becomes of it, the job's data on storage is untouched, and no job fails for it.
"""

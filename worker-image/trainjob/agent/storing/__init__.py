"""This agent's part in keeping checkpoints: its staging area, its shares of them, and the process that alone touches
storage.
"""

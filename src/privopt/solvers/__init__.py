"""Algorithms: programs over a door, pure post-processing of what it releases."""

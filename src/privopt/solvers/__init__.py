"""Algorithms: programs over a curator, pure post-processing of what it releases."""

"""Solvers of saddle points: programs over a curator for two players, a file each."""

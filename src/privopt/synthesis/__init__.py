"""Synthetic data: models of a table fitted to released answers, and the synthesizers that ask for the answers."""

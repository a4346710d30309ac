"""Runs again from their released values alone: what was asked is rebuilt, and answered by what was released."""

"""Privacy units, their rows and storage, users, blocks. PRIVATE."""

"""Stage 1: privacy units, their rows and storage, users, blocks. PRIVATE."""

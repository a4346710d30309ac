"""What is computed on private data, and how far one unit can move it."""

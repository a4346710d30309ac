"""What stands between private data and solvers: prices, answers and records every release. PRIVATE."""

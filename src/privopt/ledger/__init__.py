"""The ledger: what was spent, what it costs, what is left. It never sees data."""

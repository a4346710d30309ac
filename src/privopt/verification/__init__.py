"""A second look at a report: read as a stranger would read it, priced by code that the ledger does not share.

Nothing here imports another room of the package, so that a mistake there cannot vouch for itself.
"""

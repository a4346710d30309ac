"""The engine on a Ray cluster: resident workers hold the parts of the records, and answer with sums over them."""

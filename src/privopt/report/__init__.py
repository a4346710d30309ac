"""The privacy report: what was protected, how strongly, at what price, and what is not covered, in words."""

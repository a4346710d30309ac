"""Public mathematics on which privacy rests: how far apart gradients can be, when a minimiser is exact enough.

What is stated here about a loss is stated by its exact type, about the formulas of `problems.losses` as they stand;
tests hold each statement against the formula. Nothing else in `problems/` is relied on.
"""

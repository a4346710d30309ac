"""The public arithmetic of a solve: defaults, forecasts, plans."""

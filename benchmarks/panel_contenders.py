"""The rules for two classes that the panel compares, by name; what each is, is the first line of its docstring."""

from benchmarks.panel_cells import Rule
from benchmarks.panel_halfway import halfway
from benchmarks.panel_posterior import posterior
from benchmarks.panel_rules import landed

RULES: dict[str, Rule] = {"landed": landed, "halfway": halfway, "posterior": posterior}

"""Docstrings as the reference wants them: an empty line before a section, one name where several share a description."""

import re
from typing import Any

import griffe

_HEADING = re.compile(r"(?<=[^\n])\n(?=[A-Z][\w' ]*:\n +\S)")
_SEVERAL = re.compile(r"^( +)((?:\w+,\s+)+\w+)(?=: )", re.MULTILINE)


class SpacedSections(griffe.Extension):
    """Rewrites the docstrings of what is documented."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            spaced = _HEADING.sub("\n\n", obj.docstring.value)
            # A space that does not break keeps the names together: what follows the first space is read as a type.
            joined = lambda found: found[1] + re.sub(r",\s+", ",\N{NO-BREAK SPACE}", found[2])
            obj.docstring.value = _SEVERAL.sub(joined, spaced)

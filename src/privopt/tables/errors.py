"""The one exception for a schema, a table or a model directory that cannot be used."""

from privopt.errors import PrivoptError


class TableError(PrivoptError, ValueError):
    """What the user gave cannot be used; the message is one sentence and carries no cell of the table."""

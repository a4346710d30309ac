"""The streamed engine: units in a spool on a local disk, read once a pass."""

from privopt.engine.streamed.opening import StreamedEngine, counted_users, open_streamed

__all__ = ["StreamedEngine", "counted_users", "open_streamed"]

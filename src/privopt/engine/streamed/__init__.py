"""The streamed engine: units in a spool on a local disk, read once a pass."""

from privopt.engine.streamed.opening import StreamedEngine, open_streamed

__all__ = ["StreamedEngine", "open_streamed"]

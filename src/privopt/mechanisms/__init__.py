"""A private value becomes a released one. One mechanism object makes the noise and the event it costs."""

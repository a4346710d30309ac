"""The logistic loss with the sensitivity of the papers: that of the clip, the same at every point."""

from privopt.problems import losses


class PlainLogistic(losses.Logistic):
    """A subclass of a loss of the library: the library trusts no bound of it, only the clip."""

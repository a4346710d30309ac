"""The logistic loss with the sensitivity of the papers: that of the clip, the same at every point."""

from dataclasses import replace

from privopt.problems import losses


class PlainLogistic(losses.Logistic):
    """The library's loss without the state-dependent bound on its gradients, for reference values."""

    @property
    def facts(self):
        return replace(super().facts, any_target=False)

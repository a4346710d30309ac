"""A curator that holds data and answers what was answered on others: whoever looks past the answers is found out."""

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Recorded
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.ledger.payer import Payer
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.noise import NoiseSource


class Forced(Recorded, LocalCurator):
    """Repeats the answers of a transcript over units that it was not recorded on.

    Args:
        data: the units that are there to be looked at.
        recorded: what is answered.
        ledger: default: no limit.
    """

    def __init__(self, data: Units | Engine, recorded: Transcript, ledger: Payer | None = None) -> None:
        LocalCurator.__init__(
            self,
            data,
            Unlimited(data.public.relation) if ledger is None else ledger,
            noise=NoiseSource(0),
            transcript=Transcript(data.public.relation, seeded=recorded.seeded),
        )
        self.transcript.eager = recorded.eager
        self.repeat(recorded)

    def _child(self, private_engine: Engine, ledger: Payer) -> "Forced":
        child = Forced(private_engine, self._recorded, ledger)
        child.transcript = self.transcript
        child.repeat(self._recorded, self._cursor)
        return child

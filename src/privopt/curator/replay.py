"""Answers from a recorded transcript: what shows that a result is post-processing of its releases."""

from collections.abc import Iterator

from privopt.curator.base import Curator
from privopt.curator.dataless import Dataless
from privopt.curator.recorded import Recorded
from privopt.curator.transcript import Transcript
from privopt.ledger.payer import Payer
from privopt.ledger.unlimited import Unlimited
from privopt.public import Public


class Replay(Recorded, Dataless):
    """Answers from a recorded transcript; a solver run against it must give the bit-identical result.

    Args:
        transcript: the recorded releases, with their values.
        public: the public description the solver was run with.
        ledger: a fresh ledger with the same budget, for solvers that ask what they can afford; default: no limit.
    """

    def __init__(
        self,
        transcript: Transcript,
        public: Public,
        ledger: Payer | None = None,
        _cursor: Iterator[int] | None = None,
    ) -> None:
        super().__init__(
            public,
            Unlimited(public.relation) if ledger is None else ledger,
            Transcript(public.relation, seeded=transcript.seeded, eager=transcript.eager),
        )
        self.repeat(transcript, _cursor)

    def _child(self, public: Public, ledger: Payer) -> Curator:
        child = Replay(self._recorded, public, ledger, self._cursor)
        child.transcript = self.transcript
        return child

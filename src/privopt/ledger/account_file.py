"""An account in a file: what was paid outlives the process, a crash and a power cut.

One payment is one transaction of SQLite. It takes the file's write lock, which every other thread and process waits
for; reads all rows and adds up what they cost, rounded up; asks the counters; lets a ledger with those payments say yes
or no; inserts the row; and commits. SQLite then has the row on the disk (`synchronous = EXTRA`: FULL, and the folder
after the journal's removal, without which a power cut can bring a finished transaction back). Under a second write lock
the counters move on. Only then does `pay` return, and only after that is data read. So

* a process that dies before the commit has paid nothing and read nothing,
* one that dies after it has paid, whether it read anything or not: an account may count too much, never too little;
* a disk that is full or read-only refuses the row, and the run with it.

Rows are never changed nor removed: triggers refuse it, and every row carries the hash of the one before. Whoever may
write the file can do away with triggers, hashes and the counter beside it; only a counter elsewhere sees that.
"""

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from privopt.atomic_files import keep_names
from privopt.errors import AccountError, ArgumentError, add_note
from privopt.ledger.claims import Counter, CounterBeside, CounterFolder, Mark, check_counter
from privopt.ledger.events import NoEvent
from privopt.ledger.ledger import Ledger
from privopt.ledger.payments import COLUMNS, Fit, Payment, Terms, new_row, payment_of

MOST_BYTES = 2**26  # of the file: about two hundred thousand payments for equal fits
PATIENCE = 60.0  # seconds that a payment waits for the others to finish theirs
SEED_MARK = "a seed was used"
_APPLICATION, _VERSION = 0x70726976, 1
_SCHEMA = (
    "CREATE TABLE account (one INTEGER PRIMARY KEY CHECK (one = 1), terms TEXT NOT NULL)",
    "CREATE TABLE payment (number INTEGER PRIMARY KEY, time TEXT NOT NULL, name TEXT NOT NULL, event TEXT NOT NULL, "
    "epsilon REAL NOT NULL, delta REAL NOT NULL, amount REAL NOT NULL, amount_delta REAL NOT NULL, unit TEXT, "
    "seeded INTEGER NOT NULL, nonce TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER payments_follow_one_another BEFORE INSERT ON payment "
    "WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM payment) "
    "BEGIN SELECT RAISE(ABORT, 'payments are numbered in order'); END",
    *(
        f"CREATE TRIGGER no_{action.lower()}_of_{table} BEFORE {action} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'an account is append-only'); END"
        for table in ("account", "payment")
        for action in ("UPDATE", "DELETE")
    ),
    "CREATE TRIGGER one_account BEFORE INSERT ON account WHEN (SELECT count(*) FROM account) > 0 "
    "BEGIN SELECT RAISE(ABORT, 'a file holds one account'); END",
)


class AccountFile:
    """The payments of one account, in a file that several processes may pay from at once.

    Args:
        path: of the file, which must exist; see `create`.
        counter: what besides the counter beside the file keeps count, where the account was created with one; a folder
            is known to the file.
    Raises:
        AccountError: there is no account.
    """

    def __init__(self, path: Path, counter: Counter | None = None) -> None:
        self.path, self.counter = _resolved(path), counter
        self._known: tuple[Payment, ...] = ()
        if not self.path.exists():
            left = CounterBeside.of(self.path).path
            trace = (
                f" Its counter {left.name!r} is still there: bring back the file." if left.exists() else ""
            )
            raise AccountError(
                f"there is no account at {str(path)!r}.{trace} An account is created once, by whoever answers for the "
                "data: `privopt account create`, or Account.create(...)."
            )
        if not self.path.is_file() or self.path.stat().st_size > MOST_BYTES:
            raise AccountError(
                f"{str(path)!r} is no account of privopt: that is a regular file of at most {MOST_BYTES / 2**20:,.0f} "
                "MiB."
            )
        with self._connected() as connection:
            self.terms = Terms.from_json(self._terms(connection))
        if counter is None and self.terms.counter_folder is not None:
            self.counter = CounterFolder(Path(self.terms.counter_folder))

    @classmethod
    def create(
        cls,
        path: Path,
        terms: Terms,
        counter: Counter | None,
    ) -> "AccountFile":
        """Write the file of a new account, with nothing spent.

        Raises:
            AccountError: something is there already, or the file cannot be written.
        """
        path = _resolved(path)
        start, beside = Mark(terms.account, 0, terms.hash), CounterBeside.of(path)
        if beside.path.exists():
            raise AccountError(
                f"{str(beside.path)!r} is there already, the counter of an account that was at {str(path)!r}: bring "
                "that account back, or create this one under another name."
            )
        if counter is not None:
            counter.read(terms.account)  # refused here, while there is nothing to undo
        ours = False
        try:
            try:
                ours = path.touch(exist_ok=False) is None  # in one step: whatever stops the rest undoes it
            except FileExistsError:
                raise AccountError(
                    f"{str(path)!r} is there already: an account is never replaced. Give another name, or use the one "
                    "that is there."
                ) from None
            except OSError as error:
                reason = (error.strerror or "the system refused").lower()
                raise AccountError(f"{str(path)!r} cannot be created: {reason}.") from error
            with _reported(path), closing(_connection(path)) as connection:
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                with _transaction(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    connection.execute("INSERT INTO account VALUES (1, ?)", (terms.to_json(),))
            keep_names(path.parent)
            for each in (beside, *([counter] if counter is not None else [])):
                each.advance(start)
        except BaseException:
            if ours:
                path.unlink()
                beside.path.unlink(missing_ok=True)
            raise
        return cls(path, counter)

    # Paying ----------------------------------------------------------------------------------------------------------

    def pay(self, fit: Fit) -> int:
        """Add a payment for good, or refuse it and add nothing; one of this key is found again; see `Account.spend`.

        Returns:
            Its number.
        Raises:
            BudgetExceeded, NotPriceable, ValueError: the ledger refuses it.
            AccountError: it could not be stored, or the file must not be spent from.
        """
        # A numerical price may take seconds: it is found, and kept, before others have to wait.
        charge(ledger_of(self.terms, ()), fit)
        with self._connected() as connection:
            with _transaction(connection):
                payments = self._checked(connection)
                paid = payment_of(fit.key, payments)
                if paid is None:
                    check_unit(self.unit_of(payments), fit.unit)
                    charge(ledger_of(self.terms, payments), fit)
                    self._insert(connection, payments, fit)
                elif not fit.same_price(paid):
                    raise AccountError(
                        f"payment {paid.number} of the account has the key of this fit, and is for another: nothing "
                        "was paid."
                    )
            number = len(payments) + 1 if paid is None else paid.number
            try:
                self._count(connection)
            except BaseException as error:
                add_note(
                    error,
                    f"payment {number}, {fit.name!r}, was entered in the account before this, and stays.",
                )
                raise
        return number

    def mark_seeded(self) -> None:
        """Add a row that says that something paid here rests on a seed, unless one says so already."""
        with self._connected() as connection:
            with _transaction(connection):
                payments = self._checked(connection)
                if any(payment.seeded for payment in payments):
                    return
                self._insert(connection, payments, Fit(name=SEED_MARK, event=NoEvent(), seeded=True))
            self._count(connection)

    def _insert(self, connection: sqlite3.Connection, payments: Sequence[Payment], fit: Fit) -> None:
        row = new_row(len(payments) + 1, fit, self._hashes(payments)[-1], self.terms)
        connection.execute(
            f"INSERT INTO payment ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(row))})", row
        )

    def _count(self, connection: sqlite3.Connection) -> None:
        """Move the counters to where the file stands, one process at a time, so that they never go back."""
        with _transaction(connection):
            hashes = self._hashes(self._payments(connection))
            for counter in self._counters:
                mark = check_counter(counter, self.path, self.terms.account, hashes)
                for number in range(mark.payments + 1, len(hashes)):
                    counter.advance(Mark(self.terms.account, number, hashes[number]))

    # Reading ---------------------------------------------------------------------------------------------------------

    def payments(self) -> tuple[Payment, ...]:
        """Every payment, in order; the counters are not asked.

        Raises:
            AccountError: the file cannot be read, or a row was changed.
        """
        with self._connected() as connection:
            return self._payments(connection)

    def trouble(self) -> str | None:
        """Why the account refuses to pay whatever it is asked for; None where it does not."""
        try:
            with self._connected() as connection, _transaction(connection, "DEFERRED"):
                self._checked(connection)
        except AccountError as error:
            return str(error)
        return None

    def ledger(self) -> Ledger:
        """A ledger that has paid what the file holds: to be read, not to be paid from."""
        with self._connected() as connection, _transaction(connection, "DEFERRED"):
            payments = self._checked(connection)
        return ledger_of(self.terms, payments)

    def unit_of(self, payments: Iterable[Payment]) -> str | None:
        """What fits protect: what the owner fixed, else what the first payment says; None where none does."""
        named = (payment.unit for payment in payments if payment.unit is not None)
        return self.terms.unit or next(named, None)

    def _hashes(self, payments: Iterable[Payment]) -> list[str]:
        return [self.terms.hash, *(payment.hash for payment in payments)]

    @property
    def _counters(self) -> tuple[Counter, ...]:
        beside = CounterBeside.of(self.path)
        return (beside,) if self.counter is None else (beside, self.counter)

    def _checked(self, connection: sqlite3.Connection) -> tuple[Payment, ...]:
        """The payments, where every counter agrees that there are no others."""
        if self.terms.counted_elsewhere and self.counter is None:
            raise AccountError(
                f"the account {str(self.path)!r} is counted elsewhere too, and cannot be used without that: give the "
                "counter that it was created with, Account(path=..., counter=...)."
            )
        payments = self._payments(connection)
        hashes = self._hashes(payments)
        for counter in self._counters:
            check_counter(counter, self.path, self.terms.account, hashes)
        return payments

    def _payments(self, connection: sqlite3.Connection) -> tuple[Payment, ...]:
        """The payments in the file; those seen before are not read again."""
        if self._terms(connection) != self.terms.to_json():
            raise AccountError(f"the account {str(self.path)!r} is another one than when it was opened.")
        known = self._known
        rows = connection.execute(
            "SELECT * FROM payment WHERE number >= ? ORDER BY number", (max(1, len(known)),)
        ).fetchall()
        if known:
            if not rows or rows[0]["hash"] != known[-1].hash:
                raise AccountError(
                    f"the account {str(self.path)!r} no longer holds the {len(known)} payments that this process has "
                    "seen: it is an older copy, or was restored. Bring back the latest file."
                )
            rows = rows[1:]
        found = list(known)
        for row in rows:
            previous = found[-1].hash if found else self.terms.hash
            found.append(Payment.from_row(row, previous, self.terms))
        self._known = tuple(found)
        return self._known

    def _terms(self, connection: sqlite3.Connection) -> str:
        """The terms as they stand in the file, once it is seen to be an account's."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application != _APPLICATION:
            raise AccountError(f"{str(self.path)!r} is no account of privopt.")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            raise AccountError(
                f"the account {str(self.path)!r} has form {version}, and this version of privopt knows form {_VERSION}."
            )
        # `fetchall` everywhere: a query that Ctrl-C stops between two rows would keep the file locked, even closed.
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        schema = {row[0] for row in found}
        terms = connection.execute("SELECT terms FROM account").fetchall() if schema == set(_SCHEMA) else []
        if len(terms) != 1:
            raise AccountError(
                f"the account {str(self.path)!r} is not as privopt made it: its tables or the triggers that keep it "
                "append-only were changed."
            )
        return terms[0][0]

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        with _reported(self.path), closing(_connection(self.path)) as connection:
            yield connection


def _resolved(path: Path) -> Path:
    """The whole path.

    Raises:
        AccountError: no file can have that name.
    """
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        raise AccountError(f"no account can be at {str(path)!r}: no file has such a name.") from None


def ledger_of(terms: Terms, payments: Iterable[Payment]) -> Ledger:
    """A ledger on an account's terms that has paid `payments`."""
    ledger = Ledger(
        terms.budget,
        terms.relation,
        composition=terms.composition,
        bad_event_delta=terms.bad_event_delta,
    )
    paid = list(payments)
    fits = [payment for payment in paid if not isinstance(payment.event, NoEvent)]  # the others mark a seed
    ledger.restore((payment.name, payment.event, payment.cost) for payment in fits)
    if any(payment.seeded for payment in paid):
        ledger.mark_seeded()
    return ledger


def charge(ledger: Ledger, fit: Fit) -> None:
    """Let a ledger pay for a fit: by its own epsilon and delta under basic composition, else by its events.

    Raises:
        BudgetExceeded, NotPriceable, ValueError: it refuses.
    """
    if ledger.composition == "basic":
        ledger.spend(fit.name, fit.event, fit.epsilon, fit.delta)
    else:
        ledger.charge(fit.name, fit.event)


def check_unit(known: str | None, unit: str | None) -> None:
    """Refuse a fit that protects another kind of unit than the account.

    Raises:
        ArgumentError: it does.
    """
    if unit is not None and known not in (None, unit):
        raise ArgumentError(
            f"this account has paid for fits that protect a {known}, but this one protects a {unit}: open one account "
            "for each."
        )


def _connection(path: Path) -> sqlite3.Connection:
    """A connection that commits for good, and only what is asked for; a file that is not there is not made."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=PATIENCE, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: through the disk's own cache
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Generator[None]:
    """All or nothing, while no other process pays.

    Args:
        connection: to the file.
        kind: "IMMEDIATE" to write; "DEFERRED" to read: no payment is committed, so no counter moves past what is read.
    """
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # closing the connection undoes it as well
                connection.execute("ROLLBACK")


@contextmanager
def _reported(path: Path) -> Generator[None]:
    """What SQLite has to say, as one sentence.

    Raises:
        AccountError: instead of its errors.
    """
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            reason = f"other processes have been paying from it for {PATIENCE:.0f} seconds: try again"
        else:
            reason = str(error).rstrip(".")
        raise AccountError(
            f"the account {str(path)!r} cannot be used: {reason}. No data was read for this payment."
        ) from error

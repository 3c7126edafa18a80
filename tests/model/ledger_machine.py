"""The ledger of one thread as a state machine: real agents, real rows, and every fault that processes and people have.

Whoever acts may die at any failpoint. A pass may stand still while its lease expires, and come back as a zombie after
another one has done its work. Messages get lost and double. People decide, abort and answer whenever they like.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from agents import api
from agents.errors import AbortRefused, AdmissionConflict, ApprovalConflict
from agents.models import Approval, LogRecord, Submission, Thread
from agents.records import SubmissionSettled
from agents.states import State
from maintenance import failpoints, passes, sweep
from maintenance.delivery import Delivery
from tests.model import ledger_calm
from tests.model.ledger_hands import Hands, T, Table, at, between_transactions, empty_tables, pick, tables
from tests.model.story import AGENT, NEWS, VERBS

LEASE = timedelta(seconds=31)
WHICH = st.integers(min_value=0, max_value=7)
"""An index that is wrapped around the list it chooses from."""
NTH = st.integers(min_value=1, max_value=16)
"""At which failpoint of a pass something happens."""
SELDOM = st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
"""At which failpoint of a person's act its process dies; 0 is never."""
TOOLS = ["charge", "ship", "mail"]
SCRIPTS = st.lists(st.sampled_from([*TOOLS, *TOOLS, *sorted(VERBS)]), min_size=1, max_size=4)
WAITS = st.sampled_from([0.1, 5, 12, 31])


class LedgerMachine(Hands):
    """Every rule is one thing that somebody does; what must hold is looked at after each."""

    @initialize(scripts=st.lists(SCRIPTS, min_size=2, max_size=2))
    def begin(self, scripts: list[list[str]]) -> None:
        empty_tables()
        for key, script in enumerate(scripts, start=1):
            self.submit("ann", str(key), script, 0)

    # --- people ----------------------------------------------------------------------------------------------

    @rule(
        principal=st.sampled_from(["ann", "bob"]),
        key=st.sampled_from(["1", "2", "3", "4", "5"]),
        script=SCRIPTS,
        nth=SELDOM,
    )
    def submit(self, principal: str, key: str, script: list[str], nth: int) -> None:
        """Perhaps the caller dies; perhaps it had been accepted before."""
        before = self.receipts.get((principal, key))
        with self.mortal(nth):
            try:
                receipt = api.submit(T, AGENT, script, idempotency_key=key, principal=principal)
            except AdmissionConflict:
                assert Submission.objects.filter(principal=principal, idempotency_key=key).exists()
                return
            assert before is None or receipt == before, "one key, two receipts"
            self.receipts[principal, key] = receipt

    @rule(key=st.sampled_from([None, "a", "b"]), nth=SELDOM)
    def send_event(self, key: str | None, nth: int) -> None:
        if Thread.objects.exists():
            with self.mortal(nth):
                api.send_event(T, NEWS, "something", key=key)

    @precondition(lambda self: self.seen.open)
    @rule(which=WHICH, nth=SELDOM, minded=st.sampled_from([False, False, False, True]))
    def abort(self, which: int, nth: int, minded: bool) -> None:
        row = pick(self.open_rows(), which)
        if not minded:
            return
        with self.mortal(nth):
            try:
                api.abort(row.pk, reason="enough")
            except AbortRefused:
                assert row.state == State.JOINED

    @precondition(lambda self: self.seen.asked)
    @rule(which=WHICH, decision=st.sampled_from(["approved", "denied"]), nth=SELDOM)
    def decide(self, which: int, decision: str, nth: int) -> None:
        row = pick(list(Approval.objects.filter(decision="").order_by("requested_at", "pk")), which)
        with self.mortal(nth):
            try:
                api.resolve_approval(row.pk, decision, reason="I looked at it")
            except ApprovalConflict:
                assert row.expires_at is not None
                assert row.expires_at <= self.frozen.at

    @precondition(lambda self: self.seen.unknown)
    @rule(which=WHICH, gives_up=st.booleans(), nth=SELDOM)
    def resolve(self, which: int, gives_up: bool, nth: int) -> None:
        call = pick(self.unknown_calls(), which)
        with self.mortal(nth):
            self.answer(call, "abort" if gives_up else "")

    # --- workers -----------------------------------------------------------------------------------------------

    @rule(which=WHICH)
    def deliver(self, which: int) -> None:
        """A whole task: the pass and what it goes on with in place."""
        self.take(self.arriving(which))

    @rule(seconds=WAITS, which=WHICH)
    def deliver_after_a_while(self, seconds: float, which: int) -> None:
        self.frozen.at += timedelta(seconds=seconds)
        self.take(self.arriving(which))

    @rule(which=WHICH, nth=NTH)
    def die_in_a_pass(self, which: int, nth: int) -> None:
        with self.mortal(nth):
            self.take(self.arriving(which))

    @rule(which=WHICH, nth=st.integers(min_value=1, max_value=8))
    def come_back_as_a_zombie(self, which: int, nth: int) -> None:
        """At some failpoint the process stands still; its lease expires and another pass does the work."""
        left: list[Table] = []

        def stand_still() -> None:
            held = self.row().lease_token
            self.frozen.at += LEASE
            self.take(Delivery(thread_id=T, seq=self.row().alarm_seq))
            if held is not None and self.row().lease_token != held:
                left.append(tables())

        arriving = self.arriving(which)
        with at(nth, stand_still, where=self.is_leased):
            result = passes.deliver(arriving)
        if left:
            self.zombies += 1
            assert tables() == left[0], f"a pass that had lost its thread wrote something ({result})"

    @rule(which=WHICH, nth=NTH, does=st.sampled_from(["submit", "send_event", "abort"]))
    def act_in_the_midst_of_a_pass(self, which: int, nth: int, does: str) -> None:
        acts: dict[str, Callable[[], object]] = {
            "submit": lambda: self.submit("bob", "3", ["step"], 0),
            "send_event": lambda: self.send_event(None, 0),
            "abort": lambda: self.open_rows() and self.abort(0, 0, True),
        }
        with at(nth, acts[does], where=between_transactions):
            self.take(self.arriving(which))

    # --- time and messages ---------------------------------------------------------------------------------------

    @rule(seconds=WAITS)
    def wait(self, seconds: float) -> None:
        self.frozen.at += timedelta(seconds=seconds)
        sweep.sweep()

    @precondition(lambda self: self.messages)
    @rule(which=WHICH, doubles=st.booleans())
    def lose_or_double(self, which: int, doubles: bool) -> None:
        hint = pick(self.messages, which)
        if doubles:
            self.messages.append(hint)
        else:
            self.messages.remove(hint)

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        self.seen = self.look()
        stored = tables()
        if stored == self.looked_at:
            return
        self.looked_at = stored
        if not Thread.objects.exists():
            assert not self.receipts
            return
        report = api.verify(T)
        assert report.ok, report.failed
        places = dict(Submission.objects.values_list("pk", "queue_sequence"))
        assert {receipt.submission_id for receipt in self.receipts.values()} <= places.keys(), "L1: one was lost"
        began = [places[one] for one in self.world.began]
        assert began == sorted(began), f"L2: they began in the order {began}"
        assert all(count <= 1 for count in self.world.charged.values()), "L5: an ordinary tool ran twice"
        assert all(len(keys) == 1 for keys in self.world.mailed.values()), "a call was repeated under another key"
        self._settlements_stand()

    def teardown(self) -> None:
        try:
            with self.stack:
                ledger_calm.come_to_an_end(self)
        finally:
            failpoints.arm(None)
            empty_tables()

    def _settlements_stand(self) -> None:
        texts: dict[str, list[str]] = {}
        found = LogRecord.objects.filter(family=SubmissionSettled.family).order_by("sequence")
        for record_id, text in found.values_list("record_id", "text"):
            texts.setdefault(record_id, []).append(text)
        assert all(len(each) == 1 for each in texts.values()), "a submission is settled twice"
        now = {record_id: tuple(each) for record_id, each in texts.items()}
        assert self.outcomes.items() <= now.items(), "a settlement has changed"
        self.outcomes = now

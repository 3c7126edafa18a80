"""Transports between dispatch and the broker that lose, double, delay and record hints."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from maintenance.dispatch import Hint
from tests.process.board import Board

Send = Callable[[Hint], None]

DROPPED = 0.2
DOUBLED = 0.2
LONGEST_DELAY = timedelta(seconds=0.6)


def recording(board: Board) -> Send:
    """Notes each hint and sends none."""

    def send(hint: Hint) -> None:
        board.note("hint", thread=hint.thread_id, seq=hint.seq, has_eta=hint.eta is not None, trigger=hint.trigger)

    return send


def without_eta(carry: Send) -> Send:
    """Swallows whatever is to be delivered later, as a broker with broken delay queues does."""

    def send(hint: Hint) -> None:
        if hint.eta is None and hint.countdown is None:
            carry(hint)

    return send


def lossy(carry: Send, seed: int) -> Send:
    """Drops and doubles some hints and delays every one by another time, which also reorders them.

    Each process draws its own sequence from the seed; the delay replaces the eta, so some arrive early and some late.
    """
    draws: dict[int, random.Random] = {}

    def send(hint: Hint) -> None:
        draw = draws.setdefault(os.getpid(), random.Random(f"{seed}:{os.getpid()}"))
        if draw.random() < DROPPED:
            return
        copies = 2 if draw.random() < DOUBLED else 1
        for _ in range(copies):
            carry(replace(hint, eta=None, countdown=LONGEST_DELAY * draw.random()))

    return send

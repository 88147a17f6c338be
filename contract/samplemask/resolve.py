"""Settles the rows of each rollout among themselves, and finds the rollouts that left none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samplemask.columns import FAILED, NO_INDEX, OMITTED, Rollouts, chosen, keys_of, unknown_rows


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """The books closed: one row per rollout, and the rows that lost to a newer or better one.

    Attributes:
        rollouts: One row per expected rollout. It may be a view of the ledger's own rows.
        unattributed: Rows without task or rollout index, each counted as a rollout of its own.
        superseded: Rows that lost to another attempt.
        duplicates: Rows that lost to a row of the same attempt, or that another file holds too.
        stale: Sidecar failures of a rollout whose main row is no newer attempt: leftovers.
        unexpected: Rollouts that the materialized inputs of their run do not know, or that are more
            than were declared.
    """

    rollouts: Rollouts
    unattributed: int
    superseded: Rollouts
    duplicates: Rollouts
    stale: Rollouts
    unexpected: int


def resolve(rows: Rollouts, expected: npt.NDArray[np.void]) -> Resolved:
    """Return every expected rollout once.

    A row of the main file beats the sidecar, as in Gym's own resume. Within a file the newest attempt
    wins; within an attempt a result beats a failure, then the later line wins.

    Args:
        rows: The rows that were seen, in the order in which they were read.
        expected: The rollouts that the materialized inputs name, `columns.EXPECTED`.
    """
    indexed_N = (rows["task"] != NO_INDEX) & (rows["rollout"] != NO_INDEX)
    keyed, loose = chosen(rows, indexed_N), rows[~indexed_N]
    order_N, winner_N = _winners(keyed)
    winners = keyed if winner_N.all() else keyed[order_N[winner_N]]
    losers, victors = keyed[order_N[~winner_N]], keyed[order_N[_next_winner(winner_N)]]
    older_L = losers["attempt"] < victors["attempt"]
    stale_L = ~losers["main"] & victors["main"] & ~older_L
    superseded_L = ~stale_L & (losers["attempt"] != victors["attempt"])
    copied_N = _copies(winners)
    winners, copies = chosen(winners, ~copied_N), winners[copied_N]
    missing, unexpected = _missing(winners, copies, loose, expected)
    return Resolved(
        rollouts=_joined(winners, loose, missing),
        unattributed=len(loose),
        superseded=losers[superseded_L],
        duplicates=np.concatenate([losers[~stale_L & ~superseded_L], copies]),
        stale=losers[stale_L],
        unexpected=unexpected,
    )


def _joined(*parts: Rollouts) -> Rollouts:
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else np.concatenate(parts)


def _winners(rows: Rollouts) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return an order that puts the rows of a rollout together, best last, and where each best one is."""
    has_result_N = (rows["disposition"] != FAILED) & (rows["disposition"] != OMITTED)
    key_N = keys_of(rows)
    # Stable: among equals the later line comes last.
    order_N = np.lexsort((has_result_N, rows["attempt"], rows["main"], key_N, rows["run"]))
    winner_N = np.zeros(len(order_N), dtype=bool)
    winner_N[-1:] = True
    for column in (key_N, rows["run"]):
        sorted_N = column[order_N]
        winner_N[:-1] |= sorted_N[1:] != sorted_N[:-1]
    return order_N, winner_N


def _next_winner(winner_N: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return for each loser the place of the winner of its rollout."""
    places = np.flatnonzero(winner_N)
    return places[np.searchsorted(places, np.flatnonzero(~winner_N))]


def _copies(winners: Rollouts) -> npt.NDArray[np.bool_]:
    """Return which rows repeat, byte for byte, the row of the same rollout in another run's file.

    Only rows with a digest take part: those of files that lie in one directory, shards and their merger.
    """
    copied_N = np.zeros(len(winners), dtype=bool)
    taking_part = np.flatnonzero(winners["digest"])
    rows = winners[taking_part]
    order = np.lexsort((rows["run"], rows["digest"], keys_of(rows)))
    rows, keys = rows[order], keys_of(rows)[order]
    same = (keys[1:] == keys[:-1]) & (rows["digest"][1:] == rows["digest"][:-1])
    copied_N[taking_part[order[1:][same]]] = True
    return copied_N


def _missing(
    winners: Rollouts, copies: Rollouts, loose: Rollouts, expected: npt.NDArray[np.void]
) -> tuple[Rollouts, int]:
    """Return the expected rollouts that left no row, and how many rollouts nobody expected."""
    gone, unexpected = [unknown_rows(expected[:0])], 0
    for run in np.unique(expected["run"]).tolist():
        wanted = expected[expected["run"] == run]
        keys, first = np.unique(keys_of(wanted), return_index=True)
        seen = keys_of(np.concatenate([winners[winners["run"] == run], copies[copies["run"] == run]]))
        missing = wanted[first[~np.isin(keys, seen)]]
        unexpected += int((~np.isin(seen, keys)).sum())
        gone.append(unknown_rows(_without_loose(missing, loose[loose["run"] == run])))
    return np.concatenate(gone), unexpected


def _without_loose(missing: npt.NDArray[np.void], loose: Rollouts) -> npt.NDArray[np.void]:
    """Let each row without indices stand for one missing rollout, of its own agent where possible.

    Otherwise a run whose rows carry no indices would be counted twice: as rows and as missing.
    """
    stays = np.ones(len(missing), dtype=bool)
    agents, counts = np.unique(loose["agent"], return_counts=True)
    left = len(loose)
    for agent, count in zip(agents.tolist(), counts.tolist(), strict=True):
        own = np.flatnonzero(missing["agent"] == agent)[:count]
        stays[own] = False
        left -= len(own)
    stays[np.flatnonzero(stays)[:left]] = False
    return missing[stays]

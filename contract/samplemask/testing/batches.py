"""Batches of rollouts in numpy, and what tests do with them: select, append, relabel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GrpoBatch:
    """One batch of B rows, in numpy. Rows of a group need not be neighbours.

    Attributes:
        group_B: object (B,). Group ids.
        reward_B: float (B,). Rewards, also of masked rows.
        masked_B: bool (B,). The environment's verdict.
        length_B: int64 (B,). Response tokens; 0 is allowed.
        kinds_B: (B,) failure kind of masked rows, None elsewhere.
        session_B: object (B,). Session ids; the rows of one session are one rollout.
        order_B: int64 (B,). Place of the row in its session.
        padding_B: bool (B,). Rows that only fill the batch: no verdict, no vote, no loss.
    """

    group_B: npt.NDArray[Any]
    reward_B: FloatArray
    masked_B: BoolArray
    length_B: IntArray
    kinds_B: tuple[str | None, ...]
    session_B: npt.NDArray[Any]
    order_B: IntArray
    padding_B: BoolArray

    @classmethod
    def of(
        cls,
        rewards: Sequence[float | None],
        masked: Sequence[int | bool] | None = None,
        groups: Sequence[Any] | None = None,
        lengths: Sequence[int] | None = None,
        kinds: Sequence[str | None] | None = None,
        dtype: npt.DTypeLike = np.float64,
    ) -> GrpoBatch:
        """Write a batch by hand: one group without masked rows where nothing else is said.

        Args:
            rewards: (B,) rewards; None is a missing one and becomes NaN.
            masked: (B,) flags.
            groups: (B,) group ids.
            lengths: (B,) response tokens; 2 each by default.
            kinds: (B,) failure kinds.
            dtype: Type of the rewards.
        """
        rows = len(rewards)
        ids = groups if groups is not None else ["g"] * rows
        columns: dict[str, Any] = {
            "group_B": objects(ids),
            "reward_B": np.array([np.nan if value is None else value for value in rewards], dtype=dtype),
            "masked_B": np.array(masked if masked is not None else [0] * rows, dtype=bool),
            "length_B": np.array(lengths if lengths is not None else [2] * rows, dtype=np.int64),
            "kinds_B": tuple(kinds if kinds is not None else [None] * rows),
            "session_B": objects([f"{group}/{row}" for row, group in enumerate(ids)]),
            "order_B": np.zeros(rows, dtype=np.int64),
            "padding_B": np.zeros(rows, dtype=bool),
        }
        for name, column in columns.items():
            if len(column) != rows:
                raise ContractError.of(name, f"one value per reward, {rows}", column, "Give one per row.")
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.reward_B)

    def response_mask(self) -> IntArray:
        """Return int64 (B, T): 1 where the row has a response token; T is at least 1."""
        width = max(1, int(self.length_B.max(initial=0)))
        return (np.arange(width)[None, :] < self.length_B[:, None]).astype(np.int64)

    def token_reward(self) -> FloatArray:
        """Return (B, T): the reward at the row's last token, 0 elsewhere."""
        tokens = np.zeros(self.response_mask().shape, dtype=self.reward_B.dtype)
        tokens[np.arange(len(self)), np.maximum(self.length_B - 1, 0)] = self.reward_B
        return tokens

    def select(self, rows: npt.ArrayLike) -> GrpoBatch:
        """Return the batch of these rows: a bool mask (B,), or indices, which also reorder."""
        chosen = np.asarray(rows)
        index = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        kinds = tuple(self.kinds_B[row] for row in index)
        arrays = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "kinds_B"}
        return GrpoBatch(kinds_B=kinds, **arrays)

    def append(self, other: GrpoBatch) -> GrpoBatch:
        """Return this batch followed by the rows of another one."""
        names = [f.name for f in fields(self) if f.name != "kinds_B"]
        arrays = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        arrays["reward_B"] = arrays["reward_B"].astype(self.reward_B.dtype)
        return GrpoBatch(kinds_B=self.kinds_B + other.kinds_B, **arrays)

    def relabel(self, labels: Mapping[Any, Any] | Callable[[Any], Any]) -> GrpoBatch:
        """Return the batch with other group ids."""
        rename = labels if callable(labels) else labels.__getitem__
        return replace(self, group_B=objects([rename(group) for group in self.group_B]))

    def with_masked_reward(self, value: float) -> GrpoBatch:
        """Return the batch with this reward in every masked row."""
        return replace(self, reward_B=np.where(self.masked_B, self.reward_B.dtype.type(value), self.reward_B))

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as verify responses, in order; padding rows are left out."""
        responses = []
        for row in np.flatnonzero(~self.padding_B):
            response = {"reward": float(self.reward_B[row]), "mask_sample": bool(self.masked_B[row])}
            responses.append({**response, "failure_kind": self.kinds_B[row]})
        return responses

    def table(self) -> str:
        """Return the batch as text, a row a line, for error messages."""
        lines = ["row  group     reward    masked  tokens"]
        for row in range(len(self)):
            what = "padding" if self.padding_B[row] else ("yes" if self.masked_B[row] else "no")
            group, reward = str(self.group_B[row])[:8], f"{self.reward_B[row]:.6g}"
            lines.append(f"{row:<4} {group:<9} {reward:<9} {what:<7} {self.length_B[row]}")
        return "\n".join(lines)


def pad_tokens(tokens_BT: npt.NDArray[Any], width: int = 8) -> npt.NDArray[Any]:
    """Pad (B, T) to at least one width, so that deleting the longest row changes no order of summation."""
    return np.pad(tokens_BT, ((0, 0), (0, max(0, width - tokens_BT.shape[1]))))


def padding_rows(count: int, dtype: npt.DTypeLike = np.float64) -> GrpoBatch:
    """Return rows that only fill a batch: one token, reward 0, a group each."""
    batch = GrpoBatch.of([0.0] * count, None, [f"pad{row}" for row in range(count)], [1] * count, dtype=dtype)
    session_B = objects([f"padding_{row}" for row in range(count)])
    return replace(batch, session_B=session_B, padding_B=np.ones(count, dtype=bool))


def objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return the values as an object column (B,), whatever they are."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column

"""One small batch for the policy's tests, and short forms to ask it."""

from samplemask import MaskPolicy, RowPlan, plan_rows

# Three groups: a healthy one, one with two masked rows of four, one with a lone survivor.
GROUP = ["a", "a", "b", "b", "b", "b", "c", "c"]
MASKED = [0, 0, 1, 0, 1, 0, 1, 0]


def plan(masked=MASKED, group=GROUP, kinds=None, **options) -> RowPlan:
    return plan_rows(masked, group, MaskPolicy(**options), kinds)


def bits(array) -> list[int]:
    assert array.dtype == bool
    return array.astype(int).tolist()

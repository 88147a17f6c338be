"""Our vocabulary against NeMo Gym's own module."""

import pytest

pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed in this environment (it needs Python 3.13)")
from hypothesis import example, given
from hypothesis import strategies as st
from nemo_gym import failure_kinds as theirs

from samplemask import failure_kinds as ours

NAMES = st.one_of(
    st.text(),
    st.sampled_from(sorted(theirs.FAILURE_KINDS)),
    st.from_regex(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*", fullmatch=True),
    st.text(alphabet="ab_0:A \n", max_size=8),
)


def test_the_22_names_are_gyms():
    assert ours.FAILURE_KINDS == theirs.FAILURE_KINDS
    assert len(ours.FAILURE_KINDS) == 22


@given(NAMES)
@example("judge_failed\n")
@example("server:kind\n")
@example("server:kind:more")
@example("sérver:kind")
def test_a_name_is_known_or_namespaced_for_both_or_for_neither(name):
    assert ours.is_registered(name) == theirs.is_registered(name)
    assert ours.is_namespaced(name) == theirs.is_namespaced(name)

"""Patch points: check all, patch all, undo by identity; on a small host made of real files."""

import functools
import threading

import pytest
from seam_host import MEAN, STEP, TOTAL, add_100, foreign, mark, seam

from samplemask import SeamError
from samplemask.seams import Patches, Seam, check_seams, seam_status


def test_a_seam_has_a_full_name():
    assert STEP.name == "tiny_host.core.Trainer.step"


def test_install_wraps_functions_and_methods_and_uninstall_puts_them_back(host):
    stock = (host.mean, host.total, vars(host.Trainer)["step"])
    patches = Patches()
    patches.install([(MEAN, add_100), (TOTAL, add_100), (STEP, mark)])
    assert host.mean([1, 3], None) == 102
    assert host.total([1, 3]) == 104
    assert host.Trainer().step(1, lr=2) == ("ours", ("stock", 1, 2))
    assert patches.seams == (MEAN, TOTAL, STEP)
    patches.uninstall()
    assert (host.mean, host.total, vars(host.Trainer)["step"]) == stock
    assert patches.seams == ()


def test_a_class_method_stays_one(host):
    patches, made = Patches(), seam("Trainer.made", "cls", "size")
    patches.install([(made, mark)])
    assert host.Trainer.made(4) == ("ours", ("Trainer", 4))
    assert seam_status(made).active
    patches.uninstall()
    assert host.Trainer.made(4) == ("Trainer", 4)


def test_a_seam_may_allow_the_host_more_parameters_after_its_own(host):
    fewer = Seam("tiny_host.core", "mean", ("rewards",), "core.py", "a test", "never", more_allowed=True)
    assert seam_status(fewer).problem is None
    assert "expected parameters (rewards)" in seam_status(seam("mean", "rewards")).problem


def test_a_wrapper_looks_like_the_original(host):
    Patches().install([(MEAN, add_100)])
    assert (host.mean.__name__, host.mean.__doc__) == ("mean", "Mean of the rewards.")


def test_installing_twice_wraps_once(host):
    patches = Patches()
    patches.install([(MEAN, add_100)])
    patches.install([(MEAN, add_100), (TOTAL, add_100)])
    assert host.mean([1, 3], None) == 102
    assert patches.seams == (MEAN, TOTAL)
    patches.uninstall()
    assert host.mean([1, 3], None) == 2
    assert host.total([1, 3]) == 4


def test_a_second_set_of_patches_leaves_a_patched_seam_alone(host):
    first, second = Patches(), Patches()
    first.install([(MEAN, add_100)])
    second.install([(MEAN, add_100)])
    second.uninstall()
    assert host.mean([1, 3], None) == 102
    first.uninstall()
    assert host.mean([1, 3], None) == 2


def test_uninstalling_when_nothing_is_installed_does_nothing(host):
    Patches().uninstall()
    assert host.mean([1, 3], None) == 2


def test_install_uninstall_and_install_again(host):
    patches = Patches()
    for _ in range(3):
        patches.install([(MEAN, add_100)])
        assert host.mean([1, 3], None) == 102
        patches.uninstall()
        assert host.mean([1, 3], None) == 2


def test_a_changed_signature_is_refused_and_nothing_is_patched(host):
    wrong = seam("total", "rewards", "weights")
    patches = Patches()
    with pytest.raises(SeamError) as error:
        patches.install([(MEAN, add_100), (wrong, add_100)])
    assert str(error.value) == (
        "tiny_host.core.total: expected parameters (rewards, weights) "
        "(checked against tiny_host 1.0, core.py), "
        "found (rewards). The host has changed; install a version of it that docs/compatibility.md lists, "
        "or a newer samplemask."
    )
    assert host.mean([1, 3], None) == 2
    assert patches.seams == ()


def test_every_problem_is_told_in_one_error(host):
    wrong = [seam("total"), seam("gone"), seam("not_a_function"), seam("x", module="tiny_host.gone")]
    with pytest.raises(SeamError) as error:
        check_seams([MEAN, *wrong])
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [broken.name for broken in wrong]
    assert all("(checked against tiny_host 1.0, core.py)" in line for line in lines)
    assert all("docs/compatibility.md" in line for line in lines)


def test_seams_that_fit_pass_the_check(host):
    assert check_seams([MEAN, TOTAL, STEP]) is None


def test_a_host_that_is_not_installed_is_a_seam_error():
    status = seam_status(seam("f", module="no_such_host.core"))
    assert status.active is False
    assert "No module named 'no_such_host'" in status.problem


def test_a_missing_class_is_a_seam_error(host):
    assert "has no attribute 'Gone'" in seam_status(seam("Gone.step", "self")).problem


def test_an_inherited_method_is_no_seam_of_the_subclass(host):
    host.Child = type("Child", (host.Trainer,), {})
    assert "expected a function" in seam_status(seam("Child.step", "self", "batch", "lr")).problem


def test_a_static_method_is_refused(host):
    assert seam_status(seam("Trainer.helper", "x")).problem is not None


def test_a_foreign_wrapper_before_ours_is_refused(host):
    host.mean = foreign(host.mean)
    patches = Patches()
    with pytest.raises(
        SeamError, match=r"mean: expected the host's own function .* Another plugin wrapped it"
    ):
        patches.install([(TOTAL, add_100), (MEAN, add_100)])
    assert host.total([1, 3]) == 4
    assert patches.seams == ()


def test_a_callable_object_in_the_hosts_place_is_refused(host):
    host.mean = functools.partial(host.mean, group=None)
    assert "found functools.partial" in seam_status(MEAN).problem


def test_a_foreign_wrapper_after_ours_blocks_the_undo_and_nothing_is_undone(host):
    patches = Patches()
    patches.install([(MEAN, add_100), (TOTAL, add_100)])
    ours = host.total
    host.total = foreign(ours)
    with pytest.raises(SeamError) as error:
        patches.uninstall()
    assert str(error.value).startswith("tiny_host.core.total: expected samplemask's own wrapper, found ")
    assert str(error.value).endswith(
        "Something wrapped it after samplemask; undo that first, then uninstall."
    )
    assert host.mean([1, 3], None) == 102
    assert patches.seams == (MEAN, TOTAL)
    host.total = ours
    patches.uninstall()
    assert (host.mean([1, 3], None), host.total([1, 3])) == (2, 4)


def test_a_foreign_wrapper_after_ours_still_counts_as_active(host):
    Patches().install([(MEAN, add_100)])
    host.mean = foreign(host.mean)
    assert seam_status(MEAN).active is True
    Patches().install([(MEAN, add_100)])
    assert host.mean([1, 3], None) == 102


def test_another_version_of_samplemask_is_told_apart(host):
    Patches().install([(MEAN, add_100)])
    other = Seam("tiny_host.core", "mean", ("rewards", "group"), "another source", "a test", "never")
    status = seam_status(other)
    assert status.active is False
    assert "patched by another version of samplemask" in status.problem


def test_the_status_of_a_seam_changes_nothing(host):
    stock = host.mean
    assert (seam_status(MEAN).active, seam_status(MEAN).problem, seam_status(MEAN).seam) == (
        False,
        None,
        MEAN,
    )
    assert host.mean is stock
    patches = Patches()
    patches.install([(MEAN, add_100)])
    assert (seam_status(MEAN).active, seam_status(MEAN).problem) == (True, None)


def test_a_wrapper_that_cannot_be_made_rolls_everything_back(host):
    def broken(original):
        raise RuntimeError("cannot wrap")

    patches = Patches()
    patches.install([(STEP, mark)])
    with pytest.raises(RuntimeError, match="cannot wrap"):
        patches.install([(MEAN, add_100), (TOTAL, broken)])
    assert host.mean([1, 3], None) == 2
    assert patches.seams == (STEP,)
    patches.install([(MEAN, add_100), (TOTAL, add_100)])
    assert (host.mean([1, 3], None), host.total([1, 3])) == (102, 104)


def test_installing_again_while_installing_does_not_lock_up(host):
    patches = Patches()

    def nested(original):
        patches.install([(TOTAL, add_100)])
        return add_100(original)

    worker = threading.Thread(target=patches.install, args=([(MEAN, nested)],), daemon=True)
    worker.start()
    worker.join(timeout=20)
    assert not worker.is_alive()
    assert (host.mean([1, 3], None), host.total([1, 3])) == (102, 104)


def test_many_threads_wrap_once(host):
    patches, start, errors = Patches(), threading.Barrier(16), []

    def install():
        start.wait()
        try:
            patches.install([(MEAN, add_100), (TOTAL, add_100)])
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    threads = [threading.Thread(target=install) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (host.mean([1, 3], None), host.total([1, 3])) == (102, 104)
    patches.uninstall()
    assert (host.mean([1, 3], None), host.total([1, 3])) == (2, 4)


def test_calls_during_install_and_uninstall_see_one_or_the_other(host):
    patches, done, seen = Patches(), threading.Event(), set()

    def call():
        while not done.is_set():
            seen.add(host.mean([1, 3], None))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(200):
        patches.install([(MEAN, add_100)])
        patches.uninstall()
    done.set()
    for caller in callers:
        caller.join()
    assert seen <= {2, 102}
    assert host.mean([1, 3], None) == 2


def test_a_generator_of_wrappers_is_read_once(host):
    patches = Patches()
    patches.install((each, add_100) for each in [MEAN, TOTAL])
    assert patches.seams == (MEAN, TOTAL)

"""What a seam that does not fit says, and hosts of other shapes."""

import functools
import importlib
import sys
from types import SimpleNamespace

import pytest
from seam_host import MEAN, TOTAL, add_100, foreign, seam

from samplemask import SeamError
from samplemask.seams import Patches, seam_status


def foreign_place(host) -> str:
    code = host.mean.__code__
    return f"found foreign.<locals>.wrapper from {code.co_filename}:{code.co_firstlineno}. "


def test_a_foreign_function_is_described_by_name_and_place(host):
    host.mean = foreign(lambda rewards, group: 0)
    host.mean.__qualname__ = "foreign.<locals>.wrapper"
    assert foreign_place(host) in seam_status(MEAN).problem


def test_a_foreign_wrapper_after_ours_is_described_too(host):
    patches = Patches()
    patches.install([(MEAN, add_100)])
    host.mean = foreign(host.mean)
    host.mean.__qualname__ = "foreign.<locals>.wrapper"
    with pytest.raises(SeamError) as error:
        patches.uninstall()
    assert foreign_place(host) in str(error.value)


def test_a_callable_object_is_described_by_its_picture_and_type(host):
    host.mean = functools.partial(host.mean, group=None)
    assert "functools.partial(<function mean at " in seam_status(MEAN).problem
    assert "(partial). Another plugin wrapped it;" in seam_status(MEAN).problem


def test_what_is_missing_says_what_to_do(host):
    advice = " Install a version of the host that docs/compatibility.md lists, or a newer samplemask."
    assert seam_status(seam("gone")).problem == (
        "tiny_host.core.gone: expected a function (checked against tiny_host 1.0, core.py), found None."
        + advice
    )
    assert seam_status(seam("Gone.step")).problem == (
        "tiny_host.core.Gone.step: expected it in the host (checked against tiny_host 1.0, core.py), "
        "found: module 'tiny_host.core' has no attribute 'Gone'." + advice
    )


def test_the_parameters_found_are_listed(host):
    assert "found (rewards, group). The host" in seam_status(seam("mean", "rewards")).problem


def test_two_versions_of_samplemask_are_told_apart_and_what_to_do(host):
    Patches().install([(MEAN, add_100)])
    other = seam("mean", "rewards", "group", "more")
    assert seam_status(other).problem == (
        "tiny_host.core.mean: patched by another version of samplemask. "
        "Keep one samplemask installation in this environment and restart."
    )


def test_a_status_knows_its_seam(host):
    Patches().install([(MEAN, add_100)])
    broken = seam("f", module="no_such_host.core")
    assert [seam_status(each).seam for each in (MEAN, TOTAL, broken)] == [MEAN, TOTAL, broken]


def test_a_host_of_a_single_file_is_patched(tmp_path, monkeypatch):
    (tmp_path / "single_file_host.py").write_text("def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    single = seam("f", "x", module="single_file_host")
    patches = Patches()
    patches.install([(single, add_100)])
    assert sys.modules["single_file_host"].f(1) == 101
    patches.uninstall()
    sys.modules["single_file_host"].f = functools.partial(sys.modules["single_file_host"].f)
    assert "Another plugin wrapped it" in seam_status(single).problem
    del sys.modules["single_file_host"]


def test_a_function_that_a_subpackage_imports_from_its_parent_is_the_hosts_own(host, tmp_path):
    deep = tmp_path / "tiny_host" / "deep"
    deep.mkdir()
    (deep / "__init__.py").write_text("")
    (deep / "names.py").write_text("from tiny_host.core import mean\n")
    importlib.invalidate_caches()
    assert seam_status(seam("mean", "rewards", "group", module="tiny_host.deep.names")).problem is None


def test_rays_own_wrapper_of_an_actors_method_is_no_foreign_one(host, tmp_path, monkeypatch):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("def traced(self):\n    return self\n")
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    importlib.invalidate_caches()
    ray = importlib.import_module("ray")
    actor = type("Modified", (), {"step": ray.traced})
    host.Actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=actor), plain=actor)
    assert seam_status(seam("Actor.__ray_metadata__.modified_class.step", "self")).problem is None
    assert "Another plugin wrapped it" in seam_status(seam("Actor.plain.step", "self")).problem
    monkeypatch.delitem(sys.modules, "ray")

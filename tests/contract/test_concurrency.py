"""Many threads in one process, and processes made by fork and by spawn."""

import multiprocessing
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from samplemask import MaskPolicy, plan_rows, read_verdict
from samplemask.failure_kinds import check_kind
from samplemask.seams import Patches, Seam

RESPONSES = [
    {
        "reward": number / 8,
        "mask_sample": number % 3 == 0,
        "failure_kind": "session_lost" if number % 3 == 0 else None,
    }
    for number in range(64)
]

INSTALL = """
    import functools, importlib, multiprocessing, sys
    from samplemask.seams import Patches, Seam, seam_status

    SEAM = Seam("json.encoder", "py_encode_basestring", ("s",), "CPython", "a test", "never")

    def shout(original):
        return lambda s: original(s).upper()

    def state(_):
        import json.encoder
        return seam_status(SEAM).active, json.encoder.py_encode_basestring("a")

    def install_and_state(_):
        patches = Patches()
        patches.install([(SEAM, shout)])
        return state(None)

    if __name__ == "__main__":
        Patches().install([(SEAM, shout)])
        with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
            print(state(None), pool.map(state, [0])[0], pool.map(install_and_state, [0])[0])
"""


def test_many_threads_read_the_same_verdicts():
    expected = [read_verdict(response) for response in RESPONSES]
    start = threading.Barrier(16)

    def work(_) -> list:
        start.wait()
        return [read_verdict(response) for response in RESPONSES * 5]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [expected * 5] * 16


def test_many_threads_plan_the_same_rows():
    masked = [number % 3 == 0 for number in range(64)]
    groups = [f"g{number // 4}" for number in range(64)]
    expected = plan_rows(masked, groups, MaskPolicy()).trains_B.tolist()
    with ThreadPoolExecutor(16) as pool:
        plans = pool.map(lambda _: plan_rows(masked, groups, MaskPolicy()).trains_B.tolist(), range(64))
        assert list(plans) == [expected] * 64


def test_an_unknown_kind_is_reported_once_however_many_threads_meet_it(caplog):
    start = threading.Barrier(16)

    def work(_):
        start.wait()
        check_kind("kind_met_by_many_threads")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(caplog.records) == 1


def test_installing_does_not_wait_for_a_thread_that_imports_the_host_and_installs_there(
    tmp_path, monkeypatch
):
    (tmp_path / "slow_host.py").write_text(
        "import install_while_importing\ndef step(batch): return batch\ninstall_while_importing.now()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seam = Seam("slow_host", "step", ("batch",), "slow_host.py", "a test", "never")
    patches, importing, installing = Patches(), threading.Event(), threading.Event()

    class LoaderOfPlugins:
        """Stands for the host's plugin loader: it installs while the host's module is being imported."""

        @staticmethod
        def now():
            importing.set()
            installing.wait(10)
            time.sleep(0.05)  # until the other thread waits for this import
            patches.install([(seam, lambda original: original)])

    def wrappers():
        yield seam, lambda original: original
        installing.set()

    monkeypatch.setitem(sys.modules, "install_while_importing", LoaderOfPlugins)
    importer = threading.Thread(target=lambda: __import__("slow_host"), daemon=True)
    importer.start()
    assert importing.wait(10)
    installer = threading.Thread(target=lambda: patches.install(wrappers()), daemon=True)
    installer.start()
    installer.join(10)
    importer.join(10)
    assert not installer.is_alive()
    assert not importer.is_alive()
    assert patches.seams == (seam,)


def test_verdicts_and_errors_cross_to_a_spawned_process_and_back():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(read_verdict, RESPONSES) == [read_verdict(response) for response in RESPONSES]
        with pytest.raises(ValueError, match=r"^mask_sample: expected a bool"):
            pool.apply(read_verdict, ({"mask_sample": "maybe"},))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this platform")
def test_a_forked_process_inherits_the_patches_and_does_not_patch_twice(tmp_path):
    ours = "(True, '\"A\"')"
    assert run(tmp_path, "fork") == f"{ours} {ours} {ours}"


def test_a_spawned_process_starts_unpatched_and_installs_for_itself(tmp_path):
    ours, stock = "(True, '\"A\"')", "(False, '\"a\"')"
    assert run(tmp_path, "spawn") == f"{ours} {stock} {ours}"


def run(folder, method: str) -> str:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(INSTALL))
    done = subprocess.run([sys.executable, str(script), method], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

"""Real verl loads the plugin in every process, and a plugin that cannot work is seen to fail."""

import subprocess
import sys
import textwrap

import pytest

from samplemask_verl.diagnosis import ALL_SEAMS

pytest.importorskip("verl", reason="verl is not installed in this environment")


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    import os

    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_import_verl_loads_the_plugin_and_both_trainers_are_patched():
    result = run(
        """
        import verl
        from verl.trainer.ppo import ray_trainer
        from verl.trainer.ppo.v1 import trainer_base
        import samplemask_verl
        assert samplemask_verl.is_active()
        print(*samplemask_verl.doctor(), sep="\\n")
        """
    )
    assert result.returncode == 0, result.stderr
    assert "entry point: verl loads it in every process" in result.stdout
    assert "NOT ACTIVE" not in result.stdout
    assert result.stdout.count("  active     ") == len(ALL_SEAMS)
    assert "a run would use algorithm.mask_sample: action='exclude'" in result.stdout


def test_import_verl_does_not_pull_in_the_trainers():
    result = run("import verl, sys; print(sorted(m for m in sys.modules if m.startswith('verl.trainer')))")
    assert result.stdout.strip() == "[]", result.stderr


def test_a_moved_signature_fails_when_the_trainer_is_imported_and_again_on_a_second_try():
    result = run(
        """
        import importlib.util, pathlib, sys
        spec = importlib.util.find_spec("verl.trainer.ppo.ray_trainer")
        source = pathlib.Path(spec.origin).read_text()
        head = "def compute_advantage(\\n    "
        assert head + "data:" in source
        source = source.replace(head + "data:", head + "batch_of_data:")

        import importlib.machinery
        get_data = importlib.machinery.SourceFileLoader.get_data
        def moved(self, path):
            if path == spec.origin:
                return source.encode()
            if "ray_trainer" in path and path.endswith(".pyc"):
                raise OSError("no cached bytecode")
            return get_data(self, path)
        importlib.machinery.SourceFileLoader.get_data = moved
        for attempt in range(2):
            try:
                import verl.trainer.ppo.ray_trainer
            except Exception as error:
                print(type(error).__name__, error)
            else:
                print("imported")
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("SeamError samplemask cannot work with this verl.") == 2, (
        result.stdout + result.stderr
    )
    assert "expected parameters (data, adv_estimator" in result.stdout
    assert "found (batch_of_data, adv_estimator" in result.stdout
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in result.stdout
    assert "imported" not in result.stdout


def test_verl_can_be_told_to_leave_the_plugin_out():
    code = "import verl.trainer.ppo.ray_trainer as r; print(hasattr(r.compute_advantage, '__wrapped__'))"
    assert run(code, VERL_USE_EXTERNAL_PLUGINS="none").stdout.strip().endswith("False")
    assert run(code).stdout.strip().endswith("True")


def test_install_and_uninstall_leave_verl_as_it_was():
    result = run(
        """
        from verl.trainer.ppo import ray_trainer
        import samplemask_verl
        wrapped = ray_trainer.compute_advantage
        samplemask_verl.install(); samplemask_verl.install()
        assert ray_trainer.compute_advantage is wrapped
        samplemask_verl.uninstall()
        assert ray_trainer.compute_advantage is wrapped.__wrapped__
        assert not samplemask_verl.is_active()
        samplemask_verl.install()
        assert samplemask_verl.is_active()
        print("ok")
        """
    )
    assert result.stdout.strip() == "ok", result.stderr


def test_doctor_says_what_a_run_would_do_and_why_the_plugin_is_off():
    def doctor(*overrides, **environment):
        return run(f"from samplemask.cli import main; exit(main(['doctor', *{overrides}]))", **environment)

    good = doctor("+algorithm.mask_sample.action=drop_group")
    assert good.returncode == 0
    assert "UserWarning" not in good.stderr
    assert "action='drop_group'" in good.stdout
    assert "with a + before it" not in good.stdout
    wrong = doctor("algorithm.mask_sample.min_valid=0")
    assert wrong.returncode == 1
    assert "would STOP AT START: algorithm.mask_sample: min_valid:" in wrong.stdout
    assert "Hydra takes algorithm.mask_sample.min_valid=0 only with a + before it" in wrong.stdout
    off = doctor(VERL_USE_EXTERNAL_PLUGINS="none")
    assert off.returncode == 1
    assert "entry point: OFF: VERL_USE_EXTERNAL_PLUGINS=none leaves it out" in off.stdout
    assert "NOT ACTIVE verl.trainer.ppo.ray_trainer.compute_advantage" in off.stdout

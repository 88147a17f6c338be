"""Makes the test bed importable (pytest's importlib mode does not); Ray; the plugin; what V1 tests share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def transfer_queue():
    """A second cluster in the same process could not be reached."""
    ray = pytest.importorskip("ray")
    tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
    # Logical CPUs: TransferQueue waits for ever when Ray believes that there are only two.
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
    tq.init()
    yield tq
    ray.shutdown()


@pytest.fixture(scope="module")
def plugin():
    """samplemask installed in this process; modules ask for it with `pytest.mark.usefixtures`."""
    samplemask_verl = pytest.importorskip("samplemask_verl")
    samplemask_verl.install()
    yield
    samplemask_verl.uninstall()


@pytest.fixture(params=["tags", "fields"])
def judged_by(request, monkeypatch):
    """How V1 knows its rows: by tags, or by fields where the plugin was not there when rows were stored."""
    from samplemask_verl import stage_queue

    if request.param == "fields":
        monkeypatch.setattr(stage_queue, "tagged", lambda keys, fields, tags: tags)
    return request.param


@pytest.fixture
def queue_calls(monkeypatch):
    """What reaches TransferQueue: ("get", the fields asked for) and ("put", the fields brought)."""
    from transfer_queue import interface

    made = []

    def watched(name, fields_of):
        function = getattr(interface, name)

        async def call(**kwargs):
            made.append((name.rpartition("_")[2], sorted(fields_of(kwargs))))
            return await function(**kwargs)

        monkeypatch.setattr(interface, name, call)

    watched("async_kv_batch_get", lambda kwargs: kwargs["select_fields"] or ())
    watched("async_kv_batch_put", lambda kwargs: () if kwargs["fields"] is None else kwargs["fields"].keys())
    return made

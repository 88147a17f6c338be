"""A verl platform that calls the CPU a device."""

import os
import types
from contextlib import contextmanager

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

os.environ.setdefault("VERL_PLATFORM", "cpu")
# The key under which verl registers its stock FSDP engine.
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")

_MEMORY_BYTES = 1 << 34


def _nothing(*args, **kwargs):
    return None


def _zero(*args, **kwargs):
    return 0


def _device_module() -> types.ModuleType:
    """Build a stand-in for `torch.cuda`, as far as verl uses it."""
    module = types.ModuleType("cpu_bed_device")
    for name in ("is_available", "synchronize", "current_device", "device_count", "set_device"):
        setattr(module, name, getattr(torch.cpu, name))
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, _zero)
    for name in ("empty_cache", "reset_peak_memory_stats", "ipc_collect"):
        setattr(module, name, _nothing)
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    module.get_rng_state = lambda *device: torch.get_rng_state()
    module.set_rng_state = lambda state, *device: torch.set_rng_state(state)
    module.mem_get_info = lambda *device: (_MEMORY_BYTES // 2, _MEMORY_BYTES)
    module.get_device_name = lambda *device: "cpu"
    module.get_device_properties = lambda *device: types.SimpleNamespace(
        name="cpu", total_memory=_MEMORY_BYTES
    )
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, index):
        return None

    def synchronize(self, index=None):
        return None

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        return None

    def empty_cache(self):
        return None

    def get_device_capability(self, index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, message):
        yield

    def profiler_start(self):
        return None

    def profiler_stop(self):
        return None

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None

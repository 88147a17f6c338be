"""What verl imports in every process, because `VERL_USE_EXTERNAL_MODULES` names it.

It registers a CPU platform and a small Hugging Face rollout server, and a spy that writes down what
the training engine was given. It patches nothing that samplemask patches.
"""

from cpu_bed import platform, registrations, spy

__all__ = ["platform", "registrations", "spy"]

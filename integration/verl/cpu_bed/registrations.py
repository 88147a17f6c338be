"""What stock verl needs to be told on a CPU. Everything waits until verl imports the module concerned."""

import wrapt


@wrapt.when_imported("verl.workers.rollout.replica")
def _register_replica(module):
    def load():
        from cpu_bed.rollout import HFReplica

        return HFReplica

    module.RolloutReplicaRegistry.register("hfcpu", load)


@wrapt.when_imported("verl.workers.rollout.base")
def _register_rollout(module):
    module._ROLLOUT_REGISTRY[("hfcpu", "async")] = "cpu_bed.rollout.ServerAdapter"


@wrapt.when_imported("verl.utils.distributed")
def _use_gloo(module):
    stock = module.initialize_global_process_group_ray

    def initialize(timeout_second=None, backend=None):
        return stock(timeout_second, backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize


@wrapt.when_imported("verl.utils.model")
def _load_critic_without_flash_attention(module):
    """Stock `load_valuehead_model` hard-codes flash attention, which has no CPU kernel."""

    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation="eager",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def _do_not_pin_memory(module):
    """The reference worker's `CPUOffloadPolicy(pin_memory=True)` needs an accelerator."""
    stock = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda pin_memory=False: stock(pin_memory=False)

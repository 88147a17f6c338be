"""A rollout server made of `transformers` on the CPU, as one Ray actor per replica."""

import hashlib
from collections import Counter

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

_NAME = "cpu_bed_server_{rank}"


@ray.remote(num_cpus=0.1)
class HFServer:
    """Samples from the model; its n-th answer to a prompt under given weights is always the same."""

    def __init__(self, path, max_new_tokens, rank):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.eos = AutoTokenizer.from_pretrained(path).eos_token_id
        self.max_new_tokens, self.step = max_new_tokens, 0
        self.rank, self.asked = rank, Counter()

    def load(self, state, step):
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        self.model.load_state_dict(tensors, strict=False)
        self.step = step

    @torch.no_grad()
    def generate(self, request_id, prompt_ids, sampling_params, image_data=None, video_data=None, **unused):
        temperature = sampling_params.get("temperature", 1.0)
        asked = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens")
        random = self._generator(prompt_ids)
        tokens, log_probs = [], []
        for _ in range(min(asked or self.max_new_tokens, self.max_new_tokens)):
            logits = self.model(torch.tensor([list(prompt_ids) + tokens])).logits[0, -1].float()
            log_p = torch.log_softmax(logits / (temperature or 1.0), -1)
            token = (
                int(torch.multinomial(log_p.exp(), 1, generator=random))
                if temperature
                else int(logits.argmax())
            )
            tokens.append(token)
            log_probs.append(float(log_p[token]))
            if token == self.eos:
                break
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self.step},
        )

    def _generator(self, prompt_ids):
        prompt = tuple(prompt_ids)
        self.asked[prompt] += 1
        digest = hashlib.sha256(repr((self.rank, prompt, self.asked[prompt])).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def wake_up(self, *args, **kwargs):
        return None

    sleep = abort_all_requests = start_profile = stop_profile = wake_up
    resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = wake_up


class HFReplica(RolloutReplica):
    async def launch_servers(self):
        name = _NAME.format(rank=self.replica_rank)
        server = HFServer.options(name=name).remote(
            self.model_config["path"], self.config.response_length, self.replica_rank
        )
        self.servers = [server]
        self._server_handle, self._server_address = server, name


class ServerAdapter(BaseRollout):
    async def resume(self, tags):
        return None

    async def release(self):
        return None

    async def update_weights(self, weights, **kwargs):
        state = {name: tensor.detach().float().cpu().numpy() for name, tensor in weights}
        if torch.distributed.get_rank() != 0:
            return
        namespace = ray.get_runtime_context().namespace
        for rank in range(torch.distributed.get_world_size()):
            try:
                server = ray.get_actor(_NAME.format(rank=rank), namespace=namespace)
            except ValueError:
                break
            await server.load.remote(state, kwargs.get("global_steps"))

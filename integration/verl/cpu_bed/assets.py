"""Builds the tiny model, its byte tokenizer and the data set. Nothing is downloaded."""

from pathlib import Path

_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_assets(folder: Path, prompts: int = 16) -> None:
    """Write `model/`, `train.parquet` and `val.parquet` into `folder`."""
    tokenizer = _build_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    _build_model(tokenizer).save_pretrained(folder / "model")
    _write_prompts(folder / "train.parquet", prompts)
    _write_prompts(folder / "val.parquet", 4)


def _build_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = _CHAT
    return tokenizer


def _build_model(tokenizer):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def _write_prompts(path: Path, count: int) -> None:
    import pandas

    rows = [
        {
            "data_source": "cpu_bed",
            "prompt": [{"role": "user", "content": f"say {index}"}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": str(index)},
            "extra_info": {"index": index, "split": path.stem},
        }
        for index in range(count)
    ]
    pandas.DataFrame(rows).to_parquet(path)

"""A tiny language model over bytes with its tokenizer, and the reward that trainers must raise with it.

The prompt is a digit, the reward the share of printable ASCII characters of the answer: an untrained model gets about
0.4 and a trained one 1.
"""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 320  # 256 bytes, 3 special tokens, and some that stay unused
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def write_model(folder: Path, template: str, family: str = "Qwen2") -> None:
    """Write a random model of Qwen2 or Qwen3 and its tokenizer, whose tokens are bytes, with that chat template."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Bytes as tokens: AutoTokenizer makes a Qwen2Tokenizer of any tokenizer beside these models, and that splits so.
    vocabulary = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    model = Tokenizer(models.BPE(vocabulary, []))
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model,
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16).save_pretrained(folder)


def expected_prompt(digit: str) -> str:
    """Return the prompt of a digit as TEMPLATE renders it."""
    return f"<|im_start|>user\n{digit}<|im_end|>\n<|im_start|>assistant\n"


def without_special(text: str) -> str:
    """Return the text without the tokenizer's special tokens."""
    for token in SPECIAL:
        text = text.replace(token, "")
    return text


def score(answer: str) -> float:
    """Return the share of printable ASCII characters."""
    return sum(32 <= ord(char) < 127 for char in answer) / max(1, len(answer))


def printable(folder: Path) -> float:
    """Return the probability that a saved model begins an answer with a printable character, averaged over prompts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = torch.tensor([tokenizer(expected_prompt(str(digit)))["input_ids"] for digit in range(10)])
    with torch.no_grad():
        probabilities = model(prompts).logits[:, -1].softmax(-1)
    good = [len(text) == 1 and 32 <= ord(text) < 127 for text in map(tokenizer.decode, range(256))]
    return float(probabilities[:, :256][:, torch.tensor(good)].sum(-1).mean())

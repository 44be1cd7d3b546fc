"""A tiny text model from nothing, for experiments on a CPU: a tokenizer fitted to the task's own texts, random weights, an ordinary folder.

    python prepare_data.py all --task guess --output datasets/guess-cpu
    python make_model.py --texts datasets/guess-cpu/guess/sft/sft_train.jsonl datasets/guess-cpu/guess/rl/*.jsonl --out models/tiny-text

It knows nothing: what it is to know comes from train_sft.py and train_rl.py. The shape is Qwen3's (transformers' own class), so every other
script takes the folder as it takes a hub id. `pretrain.py` makes the tiny model that sees pictures.

Digits are single tokens and tags such as <guess> are one token each. With the usual merges "50" would be one token and "49" another, and
that the one follows the other would have to be learnt for every pair of numbers; and a tag cut in pieces can't be told from its parts.
"""

import argparse
import math
import sys
from pathlib import Path

import runs

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = r"""</?[a-z]+>|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}<]+[\r\n]*|<|\s*[\r\n]+|\s+(?!\S)|\s+"""


def read_texts(paths):
    """What stands in the messages of JSONL rows."""
    from protocol import read_jsonl

    texts = []
    for path in paths:
        for number, row in enumerate(read_jsonl(path), 1):
            messages = row.get("messages") if isinstance(row, dict) else None
            if not messages or not all(isinstance(message.get("content"), str) for message in messages):
                raise SystemExit(f"{path}, row {number}: needs messages whose content is text; write the file with prepare_data.py")
            texts += [message["content"] for message in messages]
    if not texts:
        raise SystemExit(f"{', '.join(map(str, paths))}: no rows")
    return texts


def build_tokenizer(texts, vocab_size):
    """Byte-level BPE with Qwen's marks for turns and its chat template (templates/qwen_json.jinja)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), whole])
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL), initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False)
    tokenizer.chat_template = (Path(__file__).parent / "templates" / "qwen_json.jinja").read_text(encoding="utf-8")
    return tokenizer


def build_model(tokenizer, width, layers, positions):
    """Random weights of Qwen3's shape; heads of 32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=64 * math.ceil(len(tokenizer) / 64), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, head_dim=32, max_position_embeddings=positions,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():  # the library starts at std 0.02, which is made for widths of thousands: here signals would die away
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                weight.normal_(0, 0.05 if "embed" in name else (0.5 if out else 1.0) / math.sqrt(weight.shape[1]))
    return model


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    whole = runs.number
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="JSONL files whose messages the tokenizer is fitted to")
    parser.add_argument("--out", type=Path, default=Path("models/tiny-text"), help="Hugging Face folder to write (default: %(default)s)")
    parser.add_argument("--width", type=whole(int, 32), default=128, help="a multiple of 32 (default: %(default)s)")
    parser.add_argument("--layers", type=whole(int, 1), default=4, help="(default: %(default)s)")
    parser.add_argument("--vocab-size", type=whole(int, 300), default=1024, help="at most (default: %(default)s)")
    parser.add_argument("--positions", type=whole(int, 64), default=2048, help="longest sequence (default: %(default)s)")
    parser.add_argument("--seed", type=whole(int, 0), default=0, help="of the weights (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.width % 32:
        parser.error(f"--width {args.width} is no multiple of 32")
    if args.out.is_file() or (args.out.exists() and any(args.out.iterdir())):
        raise SystemExit(f"--out {args.out} is not an empty folder: choose another")
    texts = read_texts(args.texts)
    import torch

    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer(texts, args.vocab_size)
    model = build_model(tokenizer, args.width, args.layers, args.positions)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"{args.out}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M random parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    sys.exit(main())

"""A language model of some three hundred thousand parameters, made from nothing, for the CPU versions of these experiments.

    python experiments/fund/tiny_model.py --rows datasets/fund/sft/sft_train.jsonl --out models/tiny-fund

An ordinary Hugging Face folder (Qwen3 architecture): random weights, and a byte-level BPE learnt from the demonstrations, so that the
prompt, which is nearly the same in every row, takes some 150 tokens. Digits stand alone: an amount is copied digit by digit, never as a
token that was not seen before. It knows nothing until train_sft.py has shown it the format.
"""

import argparse
import json
from pathlib import Path

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--rows", type=Path, required=True, help="sft_train.jsonl: the text that the tokenizer is learnt from")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--width", type=int, default=96, help="of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=1200, help="tokens, controls included (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    return parser.parse_args()


def learn_tokenizer(texts, size):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # all 256 bytes, so that any text can be written
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=list(CONTROLS), show_progress=False))
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def main():
    args = parse_args()
    import sys

    root = Path(__file__).resolve().parents[2]
    sys.path.insert(0, str(root))
    from records import read_jsonl

    rows = read_jsonl(args.rows)
    if not rows:
        raise SystemExit(f"--rows {args.rows}: no rows")
    if args.width < 32 or args.width % 32 or args.layers < 1:
        raise SystemExit(f"--width {args.width}, --layers {args.layers}: the width is a multiple of 32, and there is at least one layer")
    import torch
    import transformers

    tokenizer = learn_tokenizer([message["content"] for row in rows for message in row["messages"]], args.vocabulary)
    tokenizer.chat_template = (root / "templates" / "qwen_json.jinja").read_text(encoding="utf-8")
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=args.width, intermediate_size=3 * args.width, num_hidden_layers=args.layers, head_dim=32,
        num_attention_heads=args.width // 32, num_key_value_heads=args.width // 32, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(args.seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    (args.out / "generation_config.json").unlink(missing_ok=True)
    prompt = tokenizer.apply_chat_template(rows[0]["messages"], tokenize=False)
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "tokens": len(tokenizer), "tokens of the first row": len(tokenizer(prompt).input_ids)}
    print(json.dumps(facts | {"folder": str(args.out)}))


if __name__ == "__main__":
    main()

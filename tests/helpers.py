"""Shared by the tests: a tiny byte-level tokenizer with Qwen's control tokens, tiny model folders, a scripted sampler, small pictures.

folder = tiny_folder(tmp_path, "qwen3_5")        # an ordinary Hugging Face folder: load_chat, AutoModel..., everything works on it
sampler = ScriptedSampler(chat, ["thought\\n</think>\\n\\n<answer>...", ...])
"""

from __future__ import annotations

import io
import json
from pathlib import Path

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # added tokens, but ordinary text
# What the template field of a real folder of each family looks like, as far as load_chat reads it.
STOCK_XML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<function=x>{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
STOCK_JSON = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ZOOM = {
    "type": "function",
    "function": {
        "name": "zoom",
        "description": "Redraw a window.",
        "parameters": {
            "type": "object",
            "properties": {
                "range": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
                "label": {"type": "string"},
                "points": {"type": "integer"},
                "grid": {"type": "boolean"},
            },
            "required": ["range"],
        },
    },
}


# A task that gives every group different rewards however little the model knows: the share of even token ids.
TOY = '''
from types import SimpleNamespace
TOOLS = None
def start(row, folder):
    return SimpleNamespace(messages=row["messages"], tools=None, step=None)
def reward(row, trajectory):
    sampled = [token for turn in trajectory.turns for token in turn.tokens]
    share = sum(token % 2 == 0 for token in sampled) / len(sampled)
    return (1.0 if row["id"].startswith("solved") else share), {"even": share, "odd": 1 - share}
def token_spans(row, text):
    return {"reasoning": [(0, 2)], "tool": [(2, len(text))]}
'''
# Started with `python -c`, or from a file: a script with that task, which is no file of tasks/.
LAUNCH = "import sys, types, asyncio; sys.path.insert(0, {root!r}); toy = types.ModuleType('tasks.toy'); exec({toy!r}, toy.__dict__); sys.modules['tasks.toy'] = toy; import torch; torch.set_num_threads(1); import {script}; sys.argv = ['{script}.py'] + sys.argv[1:]; sys.exit(asyncio.run({script}.main()))"


def tiny_tokenizer(folder, chat_template=STOCK_JSON, merges=("h e", "l l", "he ll", "hell o", "Ċ Ċ")):
    """Byte-level BPE: 256 bytes, a few merges (so that ids can differ for the same text), Qwen's control tokens. Saved to `folder`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    for merge in merges:
        vocab["".join(merge.split())] = len(vocab)
    core = Tokenizer(models.BPE(vocab, [tuple(merge.split()) for merge in merges]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROLS])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in WORDS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return tokenizer


def tiny_config(arch, tokenizer):
    """Random tiny config (< 1 M parameters) of "qwen2_5_vl", "qwen3_vl", "qwen3_5" or "qwen3"."""
    import transformers

    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad", "vision_start", "vision_end")}
    marks = {
        "image_token_id": ids["image_pad"],
        "video_token_id": ids["video_pad"],
        "vision_start_token_id": ids["vision_start"],
        "vision_end_token_id": ids["vision_end"],
    }
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    text = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        **ends,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    vision = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
    if arch == "qwen3":
        return transformers.Qwen3Config(**text, head_dim=16, rope_parameters=rope)
    if arch == "qwen2_5_vl":
        vision |= {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1]}
        text |= {"rope_parameters": rope | {"mrope_section": [2, 3, 3]}}
        return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **marks)
    vision |= {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64, "num_position_embeddings": 64}
    if arch == "qwen3_vl":
        text |= {"head_dim": 16, "rope_parameters": rope | {"mrope_section": [2, 3, 3], "mrope_interleaved": True}}
        vision |= {"deepstack_visual_indexes": [0]}
        return transformers.Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **marks)
    if arch == "qwen3_5":
        text |= {
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": rope | {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5},
        }
        return transformers.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **marks)
    raise ValueError(f"unknown tiny arch {arch!r}")


def tiny_folder(folder, arch="qwen3_5", weights=True, chat_template=None, max_pixels=8 * 28 * 28):
    """An ordinary Hugging Face folder of a random tiny model: config, weights, tokenizer, chat template, image processor. Returns its path.

    `weights=False` leaves the weights out (and torch unloaded), enough for load_chat. Pictures of up to max_pixels keep their size.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(folder, chat_template or (STOCK_XML if arch == "qwen3_5" else STOCK_JSON))
    config = tiny_config(arch, tokenizer)
    config.save_pretrained(folder)
    if arch != "qwen3":
        processor = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "size": {"shortest_edge": 28 * 28, "longest_edge": max_pixels},
            "do_convert_rgb": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    if weights:
        import torch
        import transformers

        torch.manual_seed(0)
        kind = transformers.AutoModelForCausalLM if arch == "qwen3" else transformers.AutoModelForImageTextToText
        kind.from_config(config).save_pretrained(folder)
    return str(folder)


def png(width=56, height=28, color=(200, 30, 30), mode="RGB", file_format="PNG") -> bytes:
    """A one-colour picture."""
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, (width, height), color).save(out, format=file_format)
    return out.getvalue()


def scripted_tokens(chat, text: str) -> list[int]:
    """Ids of a text; the end-of-turn token is not added."""
    return list(chat.tokenizer(text, add_special_tokens=False).input_ids)


class ScriptedSampler:
    """Answers requests from a script: a list of items taken in order, or a function (chunks, i, params) -> item, i = sample of the request.

    An item is a text (the end token is added), a list of ids, a Sample, or an exception to raise. `requests` keeps (chunks, n, params).
    """

    version = 7

    def __init__(self, chat, script):
        self.chat, self.script, self.requests = chat, script if callable(script) else list(script), []

    async def sample(self, chunks, n, params):
        self.requests.append((list(chunks), n, params))
        return [self._sample(chunks, i, params) for i in range(n)]

    def _sample(self, chunks, i, params):
        from protocol import Sample

        item = self.script(chunks, i, params) if callable(self.script) else self.script.pop(0)
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Sample):
            return item
        tokens = scripted_tokens(self.chat, item) + [self.chat.end_token] if isinstance(item, str) else list(item)
        if len(tokens) > params.max_tokens:  # as a real sampler does
            tokens, reason = tokens[: params.max_tokens], "length"
        else:
            reason = "stop"
        return Sample(tokens, [-0.5 - 0.01 * i for i in range(len(tokens))], reason)

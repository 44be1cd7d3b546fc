"""Messages <-> tokens: chat templates, pictures, training sequences. The records are in `records`, the grammar of actions in `actions`.

One rule shapes this file: **what the model sampled is never encoded again.** Text -> ids -> text -> ids is not
the identity (a model may write "hello" as `he`+`llo` although the tokenizer would take one token), and log-probabilities belong to the
ids that were sampled. So a new turn encodes only its own suffix (`encode_observation`), and the model's ids stay untouched.

For the same reason a rendered conversation is encoded piece by piece, cut where the model's own text starts and ends: the ids that SFT
trains are the ids that a rollout meets, even where a merge could reach across the border ("assistant\\n" followed by a newline).

Functions raise SystemExit with one line that says what is wrong and how to mend it: scripts show it as it is, `rollout` records it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

# Names not used here are passed on: scripts and tasks import everything from `protocol`.
from actions import ANSWER, THINK_CLOSE, Action, ToolCall, decode_arguments, parse_action  # noqa: F401
from checkpoints import check_model_name
from inline import without_inline
from records import (  # noqa: F401
    Datum,
    ImageChunk,
    Observation,
    Sample,
    SamplingParams,
    TextChunk,
    chunks_length,
    cut_chunks,
    flat_tokens,
    json_line,
    merge_chunks,
    read_jsonl,
    write_jsonl,
)

TEMPLATES = Path(__file__).parent / "templates"
IMAGE_PAD = "<|image_pad|>"
THINK_OPEN = "<think>\n"
SENTINEL = "SENTINEL7f3a"  # stands for the model's text where a template is rendered only for what comes after it
PICTURES_KEPT = 1024  # prepared pictures in memory, each some 20-60 kB
_lock, _picture_lock = threading.RLock(), threading.RLock()  # neither template trackers nor fast tokenizers like two threads at once


@dataclass
class Chat:
    """A model's tokenizer, image processor (None: text only) and chat template, as `load_chat` found them."""

    model: str
    tokenizer: object
    image_processor: object
    template: str
    image_token_id: int | None
    end_token: int  # the token that ends a turn
    stop_tokens: tuple[int, ...]
    grammar: str  # of calls: "xml" or "json"
    merge_size: int = 1
    open_think: bool = False  # the generation prompt opens <think>
    controls: tuple[str, ...] = ()  # texts of the control tokens
    needs_bos: bool = False  # the tokenizer puts a BOS in front and the template doesn't
    pictures: OrderedDict = field(default_factory=OrderedDict, repr=False)  # sha256 of a file -> ImageChunk


# ---------------------------------------------------------------------------------------------------------------------
# loading


def load_chat(model: str, revision: str | None = None, template: str | None = None, open_think: bool | None = None) -> Chat:
    """Tokenizer, image processor and template of a hub id or a local folder.

    `template`: a file, or a name in templates/. Left out: the model's own template if it marks what the model writes ({% generation %}),
    else the one in templates/ that speaks the same call grammar, else its own (good for sampling; `sft_datum` will refuse it).
    `open_think`: whether the generation prompt opens <think> (templates/qwen_json); None asks the model's own template.
    """
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

    check_model_name(str(model))
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
        config = AutoConfig.from_pretrained(model, revision=revision)
        vision = getattr(config, "vision_config", None) is not None
        processor = AutoImageProcessor.from_pretrained(model, revision=revision) if vision else None
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"model {model!r} has no usable tokenizer, config or image processor: {str(error).splitlines()[0]} (without a hub, name a local folder)") from error
    own = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else (tokenizer.chat_template or {}).get("default", "")
    text = _choose_template(model, own, template)
    chat = Chat(str(model), tokenizer, processor, text, None, -1, (), "xml" if "<function=" in text else "json")
    chat.controls = tuple(str(t) for t in tokenizer.added_tokens_decoder.values() if t.special)
    if IMAGE_PAD in tokenizer.get_vocab():
        chat.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
    chat.merge_size = getattr(processor, "merge_size", 1)
    user = [{"role": "user", "content": "x"}]
    chat.open_think = bool(open_think)
    if open_think is None:  # a model that always thinks says so in its own generation prompt
        chat.open_think = bool(own) and _render(chat, user, prompt=True, template=own)[0].endswith(THINK_OPEN)
    prompt = _render(chat, user, prompt=True)[0]
    chat.open_think = prompt.endswith(THINK_OPEN)  # a template may leave no choice
    chat.needs_bos = _needs_bos(tokenizer, prompt)
    chat.end_token = _find_end_token(chat)
    ends = (chat.end_token, tokenizer.eos_token_id, tokenizer.get_vocab().get("<|endoftext|>"))
    chat.stop_tokens = tuple(dict.fromkeys(t for t in ends if t is not None))
    return chat


def _choose_template(model, own: str, template: str | None) -> str:
    if template:
        for path in (Path(template), TEMPLATES / template, TEMPLATES / f"{template}.jinja"):
            if path.is_file():
                return path.read_text(encoding="utf-8")
        raise SystemExit(f"no chat template {template!r}; there are: {', '.join(sorted(p.stem for p in TEMPLATES.glob('*.jinja')))}")
    if not own:
        raise SystemExit(f"model {model!r} has no chat template: name one with --template (for Qwen-style tokens: qwen_json)")
    if _has_marks(own):
        return own
    name = "qwen3_5_spec_o3" if "<function=" in own else "qwen_json" if "<|im_start|>" in own else None
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8") if name else own


def _has_marks(template: str) -> bool:
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def _needs_bos(tokenizer, prompt: str) -> bool:
    """Exactly one BOS: encoding never adds one by itself; we add it if the tokenizer would and the rendered prompt has none."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("x").input_ids[0] == bos and _ids(tokenizer, prompt)[:1] != [bos]


def _find_end_token(chat: Chat) -> int:
    """The control token right after an assistant's text, whatever the template calls it."""
    text = _render(chat, [{"role": "user", "content": "x"}, {"role": "assistant", "content": SENTINEL}])[0]
    after = _ids(chat.tokenizer, text.partition(SENTINEL)[2].lstrip())
    if not after or after[0] not in chat.tokenizer.added_tokens_decoder:
        raise SystemExit(f"model {chat.model!r}: its chat template or tokenizer has no end-of-turn token; try --template qwen_json")
    return after[0]


# ---------------------------------------------------------------------------------------------------------------------
# pictures


def load_image(source) -> bytes:
    """PNG bytes of a picture file or of encoded bytes. Transparency goes onto white, since processors would turn it black."""
    from PIL import Image

    raw = bytes(source) if isinstance(source, bytes | bytearray) else None
    try:
        raw = Path(source).read_bytes() if raw is None else raw
        with Image.open(io.BytesIO(raw)) as image:
            image.load()  # reads every pixel, so that a cut-off file is noticed here
            if image.format == "PNG" and image.mode == "RGB" and "transparency" not in image.info:
                return raw
            rgba = image.convert("RGBA")
    except Exception as error:  # Pillow raises half a dozen kinds for damaged files
        name = f"{len(raw)} bytes in memory" if isinstance(source, bytes | bytearray) else source
        raise SystemExit(f"picture {name}: cannot be read ({error}); replace the file or drop the row") from error
    flat = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    out = io.BytesIO()
    flat.save(out, format="PNG")
    return out.getvalue()


def image_chunk(chat: Chat, source) -> ImageChunk:
    """ImageChunk of a file or of encoded bytes. Prepared once for all who show the same picture, by the hash of its content."""
    if chat.image_processor is None:
        raise SystemExit(f"model {chat.model!r} reads text only, but a message holds a picture: choose a vision model")
    try:
        raw = bytes(source) if isinstance(source, bytes | bytearray) else Path(source).read_bytes()
    except OSError as error:
        raise SystemExit(f"picture {source}: cannot be read ({error.strerror}); is the path relative to the JSONL?") from error
    key, kept = hashlib.sha256(raw).digest(), chat.pictures
    with _picture_lock:  # held while preparing, so that eight branches of a group don't do the same work eight times
        if key not in kept:
            try:
                png = load_image(raw)
            except SystemExit as error:
                raise SystemExit(str(error) if raw is source else f"picture {source}: {str(error).partition(': ')[2]}") from None
            kept[key] = ImageChunk(png, _count_positions(chat, png))
        kept.move_to_end(key)
        while len(kept) > PICTURES_KEPT:
            kept.popitem(last=False)
        return kept[key]


def _count_positions(chat: Chat, png: bytes) -> int:
    from PIL import Image

    image = Image.open(io.BytesIO(png))
    if hasattr(chat.image_processor, "get_number_of_image_patches"):
        patches = chat.image_processor.get_number_of_image_patches(image.height, image.width, {})
    else:
        patches = int(np.prod(chat.image_processor(images=[image], return_tensors="np")["image_grid_thw"][0]))
    return int(patches) // chat.merge_size**2


# ---------------------------------------------------------------------------------------------------------------------
# messages -> chunks


def _ids(tokenizer, text: str) -> list[int]:
    with _lock:
        return list(tokenizer(text, add_special_tokens=False).input_ids) if text else []


def _neutral(chat: Chat, value):
    """Text from outside can't forge a turn or a picture: control tokens written in it are broken by a space (`< |im_end|>`)."""
    if isinstance(value, str):
        for token in chat.controls:
            value = value.replace(token, token[0] + " " + token[1:])
        return value
    if isinstance(value, dict):
        return {key: _neutral(chat, item) for key, item in value.items()}
    return [_neutral(chat, item) for item in value] if isinstance(value, list | tuple) else value


def _plain_message(chat: Chat, message: dict, folder, pictures: list) -> dict:
    """One OpenAI-style message as templates want it; its pictures are appended to `pictures`, in order."""
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant", "tool", "developer"):
        raise SystemExit(f"message with unknown role {role!r}: use system, user, assistant or tool")
    parts = []
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        source = part.get("image") or part.get("image_url")
        source = source.get("url") if isinstance(source, dict) else source
        if part.get("type") == "text":
            parts.append({"type": "text", "text": _neutral(chat, part.get("text") or "")})
        elif not source:
            raise SystemExit(f"message part {str(part)[:80]!r}: expected type text or image (with `image`: a path or bytes)")
        else:
            inline = isinstance(source, str) and source.startswith("data:")
            source = base64.b64decode(source.partition(",")[2]) if inline else source
            pictures.append(image_chunk(chat, source if isinstance(source, bytes) else Path(folder) / source))
            parts.append({"type": "image"})
    plain = {"role": "system" if role == "developer" else role, "content": parts}
    if not any(part["type"] == "image" for part in parts):
        plain["content"] = "".join(part["text"] for part in parts)
    if role == "assistant":
        reasoning = message.get("reasoning_content")
        found = re.match(r"<think>\n?(.*?)\n?</think>\n{0,2}", plain["content"], re.DOTALL) if not reasoning else None
        if found:  # older records keep the reasoning inside the content
            reasoning, plain["content"] = found[1], plain["content"][found.end() :]
        calls = [call.get("function", call) for call in message.get("tool_calls") or []]
        try:
            calls = [{"name": c["name"], "arguments": _neutral(chat, decode_arguments(c.get("arguments") or {}))} for c in calls]
        except (ValueError, KeyError) as error:
            raise SystemExit(f"assistant message with a broken tool call ({error}): {str(calls)[:120]}") from error
        plain |= {"reasoning_content": _neutral(chat, reasoning or "")}
        plain |= {"tool_calls": [{"type": "function", "function": call} for call in calls]} if calls else {}
    return plain


def _render(chat: Chat, messages: list, tools=None, prompt=False, template=None) -> tuple[str, list]:
    """Rendered text and the (start, end) spans that the model writes, in characters. Spans are empty if the template has no marks."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    template = template or chat.template
    options = {**chat.tokenizer.special_tokens_map, "open_think": chat.open_think}
    try:
        with _lock:
            texts, spans = render_jinja_template(
                conversations=[messages],
                tools=tools or None,
                chat_template=template,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=_has_marks(template),
                **options,
            )
    except (TemplateError, TypeError, ValueError) as error:
        raise SystemExit(f"model {chat.model!r}: its chat template refuses the conversation ({error})") from error
    return texts[0], [tuple(span) for span in spans[0]] if spans else []


def _encode(chat: Chat, text: str, spans: list, pictures: list) -> list:
    """[(chunk, whether the model writes it)] of a rendered text. Pictures take the places of the pads."""
    if text.count(IMAGE_PAD) != len(pictures):
        raise SystemExit(f"{len(pictures)} pictures for {text.count(IMAGE_PAD)} picture places: does the chat template show all of them?")
    cuts = {0, len(text), *(edge for span in spans for edge in span)}
    if chat.open_think:  # the <think> that a prompt opens is encoded apart from the header before it and from the thoughts after it
        starts = [start for start, _ in spans if text.startswith(THINK_OPEN, start)]
        cuts |= {start + len(THINK_OPEN) for start in starts}
        cuts |= {len(text) - len(THINK_OPEN)} if text.endswith(THINK_OPEN) else set()
    cuts, waiting, out = sorted(cuts), list(pictures), []
    if chat.needs_bos:
        out.append((TextChunk((chat.tokenizer.bos_token_id,)), False))
    for start, end in zip(cuts, cuts[1:]):
        written = any(low <= start and end <= high for low, high in spans)
        for number, piece in enumerate(text[start:end].split(IMAGE_PAD)):
            if number:
                out.append((waiting.pop(0), False))
            if piece:
                out.append((TextChunk(tuple(_ids(chat.tokenizer, piece))), written))
    return out


def encode_prompt(chat: Chat, messages: list, tools: list | None = None, folder=".") -> list:
    """Chunks of a conversation up to and including the next assistant header. Picture paths are relative to `folder`."""
    pictures: list = []
    plain = [_plain_message(chat, message, folder, pictures) for message in messages]
    return merge_chunks(chunk for chunk, _ in _encode(chat, *_render(chat, plain, tools, prompt=True), pictures))


def encode_turn(chat: Chat, message: dict) -> list[int]:
    """Token ids that a model would sample to write this assistant message, end token included: how scripted policies speak."""
    user = [{"role": "user", "content": "x"}]
    before = _render(chat, user, prompt=True)[0]
    whole = _render(chat, user + [_plain_message(chat, message, ".", [])])[0]
    if not whole.startswith(before):
        raise SystemExit(f"model {chat.model!r}: its chat template changes what comes before a turn; try --template qwen_json")
    ids = _ids(chat.tokenizer, whole[len(before) :])
    return ids[: len(ids) - ids[::-1].index(chat.end_token)]


def encode_observation(chat: Chat, observation: Observation, last_token: int | None) -> list:
    """Chunks that follow the model's turn: separator, the observation's turn, the next assistant header. Only these, never its own text.

    `last_token`: the last id that was sampled. If it doesn't end a turn, the end token comes first (context, so never trained).
    Rendered after a dummy turn whose text is a sentinel; what stands behind the sentinel's end token is the suffix.
    """
    parts = [{"type": "image", "image": png} for png in observation.images]
    parts += [{"type": "text", "text": observation.text}] if observation.text else []
    pictures: list = []
    plain = _plain_message(chat, {"role": observation.role, "content": parts}, ".", pictures)
    dummy = [{"role": "user", "content": "x"}, {"role": "assistant", "content": SENTINEL}, plain]
    end = chat.tokenizer.convert_ids_to_tokens(chat.end_token)
    text = _render(chat, dummy, prompt=True)[0].partition(SENTINEL)[2]
    if end not in text:
        raise SystemExit(
            f"model {chat.model!r}: its chat template hides earlier turns, so nothing can be appended; try --template qwen_json"
        )
    text = text.partition(end)[2]
    start = [TextChunk((chat.end_token,))] if last_token != chat.end_token else []
    return merge_chunks(start + [chunk for chunk, _ in _encode(replace(chat, needs_bos=False), text, [], pictures)])


def encode_text(chat: Chat, text: str) -> TextChunk:
    """Plain text that is put into a turn from outside, such as the result of an inline tool."""
    return TextChunk(tuple(_ids(chat.tokenizer, _neutral(chat, text))))


def decode(chat: Chat, tokens: list[int]) -> str:
    """Text of sampled ids, without the stop token at the end."""
    tokens = tokens[:-1] if tokens and tokens[-1] in chat.stop_tokens else tokens
    with _lock:
        return chat.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def assistant_message(chat: Chat, text: str, tools: list | None = None) -> dict:
    """OpenAI-style message of a sampled turn. A call becomes `tool_calls` only where that renders back to the same text."""
    thinks = chat.open_think or text.startswith(THINK_OPEN)
    head, close, content = text.removeprefix("" if chat.open_think else THINK_OPEN).partition(f"\n{THINK_CLOSE}\n\n")
    message = {"role": "assistant", "content": content if thinks and close else "" if chat.open_think else text}
    message |= {"reasoning_content": head} if thinks and (close or chat.open_think) else {}
    action = parse_action(chat, text, tools)
    if action.call:
        call = {"type": "function", "function": {"name": action.call.name, "arguments": action.call.arguments}}
        short = message | {"content": message["content"].partition("<tool_call>")[0].removesuffix("\n"), "tool_calls": [call]}
        if decode(chat, encode_turn(chat, short)) == text:
            return short
    return message


# ---------------------------------------------------------------------------------------------------------------------
# training sequences


def _shift(chunks: list, trained: np.ndarray) -> tuple[list, np.ndarray, np.ndarray]:
    """Input chunks [T], targets [T] and mask [T] of a sequence [T+1]; what follows the last trained token predicts nothing and goes."""
    last = int(np.flatnonzero(trained)[-1])
    tokens = flat_tokens(chunks)  # [L]
    mask = trained[1 : last + 1].astype(np.float32)  # [T]
    return cut_chunks(chunks, last), np.where(mask > 0, tokens[1 : last + 1], 0), mask


def sft_datum(chat: Chat, messages: list, tools: list | None = None, folder=".", max_seq_len: int | None = None) -> Datum | None:
    """Training sequence of a whole conversation: every token that the assistant writes has weight 1, its end token included.

    None if it is longer than `max_seq_len` positions (the caller counts these: a cut could fall into a picture). SystemExit if nothing
    would be trained, which is what a template without {% generation %} does silently, or if a turn would not learn to stop.
    """
    if not _has_marks(chat.template):
        raise SystemExit(
            f"model {chat.model!r}: its chat template doesn't mark what the assistant writes ({{% generation %}}), so nothing "
            "would be trained; use --template qwen_json or qwen3_5_spec_o3, or add the marks to a copy of your template"
        )
    pictures: list = []
    plain = [_plain_message(chat, message, folder, pictures) for message in messages]
    text, turns = _render(chat, plain, tools)
    spans = without_inline(text, turns, messages)
    pieces = _encode(chat, text, spans, pictures)
    trained = np.repeat([written for _, written in pieces], [len(chunk) for chunk, _ in pieces])  # bool [L]
    chunks = merge_chunks(chunk for chunk, _ in pieces)
    if not trained.any():
        raise SystemExit("conversation without a trained token: it holds no assistant message")
    ends = np.flatnonzero(trained & ~np.append(trained[1:], False))  # last trained position of each span
    if len(ends) == len(spans) > len(turns):  # a pause before an inline result ends no turn
        ends = ends[[any(end == close for _, close in turns) for _, end in spans]]
    if not set(flat_tokens(chunks)[ends].tolist()) <= set(chat.stop_tokens):
        raise SystemExit(
            f"model {chat.model!r}: its chat template leaves the end-of-turn token outside {{% generation %}}, so the model "
            "would not learn to stop; move it inside"
        )
    if max_seq_len and len(trained) > max_seq_len:
        return None
    inputs, targets, weights = _shift(chunks, trained)
    return _aligned(Datum(inputs, targets, weights))


def rl_datum(trajectory, advantage, token_weights=None, max_seq_len: int | None = None) -> Datum:
    """Training sequence of a trajectory, from its token record alone (nothing is encoded).

    `advantage`: a number, or one per sampled token. `token_weights`: one per sampled token (None: 1). `max_seq_len` cuts the end off.
    ValueError if no sampled token is left: such a trajectory counts in its group's statistics but gives no datum.
    """
    chunks = trajectory.chunks if max_seq_len is None else cut_chunks(trajectory.chunks, max_seq_len)
    length = chunks_length(chunks)
    sampled = np.asarray(trajectory.sampled, dtype=bool)  # [whole]
    old = np.asarray(trajectory.logprobs, dtype=np.float32)  # [whole]
    if not len(sampled) == len(old) == chunks_length(trajectory.chunks):
        raise ValueError(
            f"trajectory {trajectory.id}: {len(sampled)} flags, {len(old)} logprobs, {chunks_length(trajectory.chunks)} positions"
        )

    def spread(values):  # one value per sampled token -> one per position
        row = np.zeros(len(sampled), dtype=np.float32)
        row[sampled] = values
        return row[:length]

    advantages, extra = spread(advantage), spread(1.0 if token_weights is None else token_weights)
    if not sampled[:length].any():
        raise ValueError(f"trajectory {trajectory.id} has no sampled token")
    inputs, targets, mask = _shift(chunks, sampled[:length])
    span = slice(1, len(mask) + 1)
    return _aligned(Datum(inputs, targets, mask * extra[span], old[span] * mask, advantages[span] * mask))


def _aligned(datum: Datum) -> Datum:
    lengths = [chunks_length(datum.chunks)]
    lengths += [len(a) for a in (datum.targets, datum.weights, datum.logprobs, datum.advantages) if a is not None]
    assert len(set(lengths)) == 1, f"chunks, targets, weights, logprobs, advantages have lengths {lengths}"
    return datum

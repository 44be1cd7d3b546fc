"""The shipped chat templates: what is built turn by turn equals what is rendered at once, and nothing already written ever changes."""

import pytest
from helpers import ZOOM, png, tiny_folder

from protocol import (
    Observation,
    assistant_message,
    chunks_length,
    decode,
    encode_observation,
    encode_prompt,
    encode_turn,
    flat_tokens,
    load_chat,
    merge_chunks,
    parse_action,
    sft_datum,
)
from records import TextChunk

# (folder, open_think, template if not the one that load_chat chooses)
CASES = [("qwen3_5", None, None), ("qwen3_5", None, "tiny_vlm"), ("qwen2_5_vl", False, None), ("qwen3_vl", False, None), ("qwen3_vl", True, None)]
CALL = {"type": "function", "function": {"name": "zoom", "arguments": {"range": [6400, 6700.5], "label": "Hα 区域", "grid": True}}}
TEXTS = ["plain", "", " both sides \n", "\n\n two newlines", "hello\n\nhello", "emoji 🙂 中文", "<answer>\\boxed{YES} a</answer>"]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-think_{case[1]}-{case[2]}")
def chat(request, tmp_path_factory):
    arch, open_think, template = request.param
    return load_chat(tiny_folder(tmp_path_factory.mktemp("model") / arch, arch, weights=False), template=template, open_think=open_think)


def conversation(reasoning, content, call):
    message = {"role": "assistant", "content": content}
    message |= {"reasoning_content": reasoning} if reasoning is not None else {}
    return message | ({"tool_calls": [CALL]} if call else {})


def observations():
    return [
        Observation("Done.", [png()]),
        Observation("", [png(28, 28)]),
        Observation("only text\n"),
        Observation("two", [png(), png(84, 56)]),
    ]


def as_message(observation):
    parts = [{"type": "image", "image": image} for image in observation.images]
    return {"role": "tool", "content": parts + ([{"type": "text", "text": observation.text}] if observation.text else [])}


def flat(chunks):
    """Comparable: ids, and pictures as (positions, bytes)."""
    return [c.tokens if isinstance(c, TextChunk) else (c.positions, c.data) for c in merge_chunks(chunks)]


@pytest.mark.parametrize("reasoning", [None, "I look.", " spaced \n", "\nstarts with a newline"])
@pytest.mark.parametrize("call", [False, True])
def test_P01_P04_P47_incremental_ids_equal_whole_rendering(chat, reasoning, call):
    """Each turn: prompt + sampled ids + suffix == the whole conversation rendered with a generation prompt; ids are only ever appended."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": png()}, {"type": "text", "text": "hello?"}]},
    ]
    chunks = encode_prompt(chat, messages, [ZOOM])
    for index, content in enumerate(TEXTS):
        before = flat(chunks)
        observation = observations()[index % 4]
        turn = conversation(reasoning, content, call)
        ids = encode_turn(chat, turn)
        assert ids[-1] == chat.end_token and ids.count(chat.end_token) == 1
        chunks = merge_chunks([*chunks, TextChunk(tuple(ids)), *encode_observation(chat, observation, ids[-1])])
        messages = [*messages, turn, as_message(observation)]
        assert flat(chunks) == flat(encode_prompt(chat, messages, [ZOOM]))
        now = flat(chunks)
        assert now[: len(before) - 1] == before[:-1] and now[len(before) - 1][: len(before[-1])] == before[-1]


@pytest.mark.parametrize("text", TEXTS + ["  ", "\n", "tab\t"])
def test_P47_nothing_that_the_record_holds_is_trimmed(chat, text):
    """Reasoning, content, string arguments, questions and observations come out as they went in."""
    think, close = ("" if chat.open_think else "<think>\n"), "\n</think>\n\n"
    wrote = decode(chat, encode_turn(chat, {"role": "assistant", "content": text, "reasoning_content": "r" + text}))
    assert wrote == f"{think}r{text}{close}{text}"
    if not chat.open_think:
        assert decode(chat, encode_turn(chat, {"role": "assistant", "content": text})) == text
    call = {"function": {"name": "zoom", "arguments": {"range": [1, 2], "label": text}}}
    wrote = decode(chat, encode_turn(chat, {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call]}))
    assert parse_action(chat, wrote, [ZOOM]).call.arguments["label"] == text
    shown = chat.tokenizer.decode(flat_tokens(encode_observation(chat, Observation(text or "x"), chat.end_token)))
    assert f"<tool_response>\n{text or 'x'}\n</tool_response>" in shown
    asked = chat.tokenizer.decode(
        flat_tokens(encode_prompt(chat, [{"role": "system", "content": text}, {"role": "user", "content": text}]))
    )
    assert f"<|im_start|>system\n{text}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n" in asked


def test_P01_border_newlines_do_not_merge_with_the_header(chat):
    """A turn that starts with newlines: rendered in one string the header's newline would merge with them ("ĊĊ" is one id here)."""
    user = {"role": "user", "content": "x"}
    prompt = encode_prompt(chat, [user])
    turn = {"role": "assistant", "content": "\n\nhello", "reasoning_content": "\n\nhm" if chat.open_think else ""}
    ids = encode_turn(chat, turn)
    whole = encode_prompt(chat, [user, turn, {"role": "user", "content": "y"}])
    assert flat_tokens(whole)[: chunks_length(prompt) + len(ids)].tolist() == [*flat_tokens(prompt), *ids]


def test_P01_two_halves_of_a_word_stay_two_ids(chat):
    """`he` + `llo` re-encodes to one id; the suffix must not touch them."""
    he, llo = chat.tokenizer.convert_tokens_to_ids("he"), chat.tokenizer.convert_tokens_to_ids("ll")
    o = chat.tokenizer.convert_tokens_to_ids("o")
    sampled = [he, llo, o, chat.end_token]
    again = chat.tokenizer(decode(chat, sampled), add_special_tokens=False).input_ids
    assert again != sampled[:-1]  # else this test proves nothing
    suffix = encode_observation(chat, Observation("ok"), sampled[-1])
    assert not set(sampled[:-1]) & {*flat_tokens(suffix).tolist()} - {o} and flat_tokens(suffix)[0] != chat.end_token


def test_suffix_closes_a_turn_that_the_model_left_open(chat):
    eos = chat.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    closed = flat(encode_observation(chat, Observation("ok"), chat.end_token))
    for last in (eos, 5, None):
        opened = flat(encode_observation(chat, Observation("ok"), last))
        assert opened[0] == (chat.end_token, *closed[0])


def test_P04_prefix_never_changes_as_messages_are_added(chat):
    """Every prefix that ends where the model speaks is a prefix of all longer renderings."""
    messages = [{"role": "user", "content": "q"}]
    for reasoning, call in ((None, True), ("why", False), ("", True), ("because", True)):
        messages += [
            conversation(reasoning, "c", call),
            {"role": "tool", "content": "r"},
            conversation(reasoning, "d", False),
            {"role": "user", "content": "next"},
        ]
    whole = flat_tokens(encode_prompt(chat, messages, [ZOOM])).tolist()
    for n in range(1, len(messages)):
        if messages[n - 1]["role"] != "assistant" and messages[n]["role"] == "assistant":
            part = flat_tokens(encode_prompt(chat, messages[:n], [ZOOM])).tolist()
            assert whole[: len(part)] == part, n


def test_P12_arguments_as_dict_string_or_doubly_encoded_render_the_same(chat):
    import json

    renders = []
    for arguments in (
        CALL["function"]["arguments"],
        json.dumps(CALL["function"]["arguments"]),
        json.dumps(json.dumps(CALL["function"]["arguments"])),
    ):
        renders.append(
            encode_turn(chat, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "zoom", "arguments": arguments}}]})
        )
    assert renders[0] == renders[1] == renders[2]
    with pytest.raises(SystemExit, match="broken tool call"):
        encode_turn(chat, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "zoom", "arguments": "{'a': 1}"}}]})


@pytest.mark.parametrize("reasoning", [None, "Look closer."])
def test_P05_message_of_a_sampled_turn_renders_to_the_sampled_ids(chat, reasoning):
    for message in (conversation(reasoning, "", True), conversation(reasoning, "<answer>\\boxed{NO} flat</answer>", False)):
        ids = encode_turn(chat, message)
        back = assistant_message(chat, decode(chat, ids), [ZOOM])
        assert encode_turn(chat, back) == ids
        assert ("tool_calls" in back) == ("tool_calls" in message)
        if "tool_calls" in message:
            assert back["tool_calls"][0]["function"] == CALL["function"]


def test_what_the_template_writes_the_parser_reads(chat):
    text = decode(chat, encode_turn(chat, conversation("hm", "", True)))
    action = parse_action(chat, text, [ZOOM])
    assert action.kind == "tool" and not action.error and action.call.arguments == CALL["function"]["arguments"]
    if chat.grammar == "xml":
        assert text == (
            "hm\n</think>\n\n<tool_call>\n<function=zoom>\n<parameter=range>\n[6400, 6700.5]\n</parameter>\n"
            "<parameter=label>\nHα 区域\n</parameter>\n<parameter=grid>\ntrue\n</parameter>\n</function>\n</tool_call>"
        )


def test_marks_cover_what_the_model_writes_and_nothing_else(chat):
    """P07, P06: weights are 1 on the assistant's text, its end token and (opened) <think>, 0 on headers, prompts and observations."""
    messages = [
        {"role": "user", "content": "hello"},
        conversation("a", "", True),
        as_message(Observation("obs", [png()])),
        conversation(None, "<answer>\\boxed{NO} b</answer>", False),
    ]
    datum = sft_datum(chat, messages, [ZOOM])
    trained = decode(chat, [int(t) for t, w in zip(datum.targets, datum.weights) if w] + [0, chat.end_token])[:-1]
    think = "<think>\n" if chat.open_think else ""
    turns = [think + decode(chat, encode_turn(chat, m)) + "<|im_end|>" for m in (messages[1], messages[3])]
    if not chat.open_think:
        assert turns[0].startswith("<think>\na\n</think>")
    assert trained == "".join(turns)
    assert "obs" not in trained and "hello" not in trained and "assistant" not in trained


def test_whole_rendering_is_what_the_template_says(tmp_path):
    chat = load_chat(tiny_folder(tmp_path, "qwen3_5", weights=False))
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "image", "image": png()}, {"type": "text", "text": "U"}]},
        {"role": "assistant", "content": "A", "reasoning_content": "R"},
        {"role": "tool", "content": "T1"},
        {"role": "tool", "content": "T2"},
    ]
    text = "".join(chat.tokenizer.decode(c.tokens) if isinstance(c, TextChunk) else f"[{len(c)}]" for c in encode_prompt(chat, messages))
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n<|vision_start|>[2]<|vision_end|>U<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nR\n</think>\n\nA<|im_end|>\n<|im_start|>user\n<tool_response>\nT1\n</tool_response>\n"
        "<tool_response>\nT2\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    head = chat.tokenizer.decode(encode_prompt(chat, messages[:1], [ZOOM])[0].tokens)
    assert (
        head.startswith("<|im_start|>system\n# Tools")
        and head.index("<tool_call>") < head.index("\n\nS<|im_end|>")
        and '"name": "zoom"' in head
    )


def test_user_role_observation_is_a_user_turn(chat):
    text = chat.tokenizer.decode(encode_observation(chat, Observation("too low", role="user"), chat.end_token)[0].tokens)
    assert text.startswith("\n<|im_start|>user\ntoo low<|im_end|>\n<|im_start|>assistant\n") and "tool_response" not in text

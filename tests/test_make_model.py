"""make_model.py: an ordinary folder that the other scripts take, digits and tags one token each, the same weights from the same seed."""

import random

import pytest

import make_model
from protocol import load_chat, sft_datum, write_jsonl
from tasks import guess


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """(model folder, rows)"""
    root, rng = tmp_path_factory.mktemp("model"), random.Random(0)
    rows = [guess.make_row("train", n, n + 1, 100, 10, guess.TEMPLATES, rng) for n in range(60)]
    for row in rows:
        text, injected = guess.demonstration(int(row["label"]), 100)
        row["messages"].append({"role": "assistant", "content": text, "inline": injected})
    write_jsonl(root / "rows.jsonl", rows)
    make_model.main(["--texts", str(root / "rows.jsonl"), "--out", str(root / "tiny"), "--width", "32", "--layers", "1", "--vocab-size", "400"])
    return root / "tiny", rows


def test_digits_and_tags_are_single_tokens(folder):
    chat = load_chat(str(folder[0]))
    pieces = lambda text: [chat.tokenizer.decode([token]) for token in chat.tokenizer(text).input_ids]
    assert pieces("<guess>100</guess>") == ["<guess>", "1", "0", "0", "</guess>"]
    assert pieces("</guess><obs>higher</obs>\n<think>") == ["</guess>", "<obs>", "higher", "</obs>", "\n", "<think>"]
    assert chat.tokenizer.decode(chat.tokenizer("ä <b 7.5é\n\n").input_ids) == "ä <b 7.5é\n\n"


def test_its_own_template_marks_what_the_model_writes(folder):
    chat = load_chat(str(folder[0]))
    datum = sft_datum(chat, folder[1][36]["messages"])  # secret 37
    trained = chat.tokenizer.decode([int(t) for t, w in zip(datum.targets, datum.weights) if w])
    assert trained.startswith("<think>\nThe number is between 1 and 100.") and trained.endswith("<guess>37</guess><|im_end|>") and "<obs>" not in trained
    assert chat.end_token == chat.tokenizer.convert_tokens_to_ids("<|im_end|>") in chat.stop_tokens


def test_the_seed_decides_the_weights_and_they_load(folder, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    flags = ["--texts", str(folder[0].parent / "rows.jsonl"), "--width", "32", "--layers", "1", "--vocab-size", "400"]
    for name, seed in (("same", "0"), ("other", "1")):
        make_model.main([*flags, "--out", str(tmp_path / name), "--seed", seed])
    first, same, other = (AutoModelForCausalLM.from_pretrained(path) for path in (folder[0], tmp_path / "same", tmp_path / "other"))
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(first(tokens).logits, same(tokens).logits) and not torch.equal(first(tokens).logits, other(tokens).logits)
    assert first.config.model_type == "qwen3" and first(tokens).logits.std() > 0.1  # signals don't die away at this width


@pytest.mark.parametrize("flags, says", [("--width 33", "no multiple of 32"), ("--width 0", "at least 32"), ("--vocab-size 10", "at least 300")])
def test_P50_a_wrong_flag_is_refused_by_name(flags, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        make_model.main(["--texts", "x", *flags.split()])
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_bad_input_is_one_line(folder, tmp_path):
    write_jsonl(tmp_path / "bad.jsonl", [{"id": "a", "messages": [{"role": "user", "content": [{"type": "image"}]}]}])
    write_jsonl(tmp_path / "none.jsonl", [])
    for name, out, says in (("bad.jsonl", "new", "row 1: needs messages whose content is text"), ("none.jsonl", "new", "no rows"),
                            ("none.jsonl", folder[0], "is not an empty folder"), ("nowhere.jsonl", "new", "cannot be read")):  # fmt: skip
        with pytest.raises(SystemExit, match=says):
            make_model.main(["--texts", str(tmp_path / name), "--out", str(tmp_path / out)])
    assert not (tmp_path / "new").exists()

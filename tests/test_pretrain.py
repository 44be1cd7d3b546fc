"""pretrain.py and lessons.py: their shortcuts against the library's own path, and a language model that is given eyes."""

import io
import json

import numpy as np
import pytest
import torch
from helpers import tiny_folder, tiny_tokenizer

import lessons
import pretrain

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A random Qwen2 language model."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("language")
    tokenizer = tiny_tokenizer(folder, "{{ messages }}")
    config = Qwen2Config(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def graft_here(language, out, *words):
    words = ["graft-vlm", "--language", language, "--objects", "24", "--held-out", "12", "--manuals", "4", "--batch-size", "4", *words]
    args = pretrain.parse_args([*words, "--width", "64", "--picture-size", "112x56", "--out", str(out)])
    torch.manual_seed(0)

    class Here:  # the same work without processes
        imap = staticmethod(lambda job, numbers, chunksize: map(job, numbers))

    pretrain.graft_vlm(args, Here)
    return out


@pytest.fixture(scope="module")
def grafted(language, tmp_path_factory):
    return graft_here(language, tmp_path_factory.mktemp("grafted") / "vlm", "--layers", "2", "--steps", "3", "--look-steps", "2")


def test_only_the_tower_and_the_two_tags_are_trained(language, grafted):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    before = AutoModelForCausalLM.from_pretrained(language, dtype=torch.bfloat16).model.state_dict()
    after = AutoModelForImageTextToText.from_pretrained(grafted, dtype=torch.bfloat16)
    tags = AutoTokenizer.from_pretrained(language).convert_tokens_to_ids(list(pretrain.TAGS))
    for name, weight in after.model.language_model.state_dict().items():
        same = (weight == before[name]).flatten(1).all(1) if "embed_tokens" in name else (weight == before[name]).all()[None]
        assert sorted(set(range(len(same))) - set(same.nonzero().flatten().tolist())) == (sorted(tags) if "embed_tokens" in name else [])
    assert after.lm_head.weight.data_ptr() == after.model.language_model.embed_tokens.weight.data_ptr()
    assert not torch.equal(*after.get_input_embeddings().weight[tags])  # each tag has a row of its own
    log = json.loads((grafted / "pretraining.json").read_text())["stages"][0]
    assert [line.get("look") for line in log["log"]] == [1, 2, None, None, None] and log["command"]["language"] == "language0"  # the folder's name, not where it lies


def test_a_tower_that_has_looked_goes_on_elsewhere(language, grafted, tmp_path):
    from safetensors.torch import load_file

    looked = load_file(grafted / "tower.safetensors")
    out = graft_here(language, tmp_path / "vlm", "--layers", "2", "--steps", "0", "--tower", str(grafted / "tower.safetensors"))
    after = {name.removeprefix("visual."): value for name, value in load_file(out / "model.safetensors").items() if name.startswith("visual.")}
    assert set(after) == set(looked) and not (out / "tower.safetensors").exists()  # it didn't look again
    scales = {name: (value.float() / looked[name])[looked[name] != 0] for name, value in after.items()}
    for name, scale in scales.items():  # the last layer alone is scaled, to the loudness of words; bfloat16 keeps 8 bits
        assert (scale - (1 if not name.startswith("merger.mlp.2") else scales["merger.mlp.2.weight"].median())).abs().max() < 0.01, name
    assert not 0.9 < scales["merger.mlp.2.weight"].median() < 1.1
    with pytest.raises(SystemExit, match="tower.safetensors: of another shape than --layers, --width"):
        graft_here(language, tmp_path / "other", "--layers", "1", "--tower", str(grafted / "tower.safetensors"))
    with pytest.raises(SystemExit, match="--tower .*config.json: can't be read"):
        graft_here(language, tmp_path / "other", "--layers", "2", "--tower", str(grafted / "config.json"))


def test_the_result_is_an_ordinary_folder_that_the_backend_samples_and_trains(grafted):
    """With pictures: fast path, transformers' forward and the trainer agree."""
    import asyncio

    from backends.local import make_engine
    from backends.model import load_model
    from protocol import SamplingParams, encode_prompt, load_chat
    from tasks.spec_o3 import TOOLS, question_messages
    from tools import render_spectrum

    picture = render_spectrum(np.arange(3800.0, 9000.0), np.sin(np.arange(5200) / 40), 3800, 9000, (112, 56))
    chat = load_chat(str(grafted))
    chunks = encode_prompt(chat, question_messages("wd", picture, 3800, 9000), TOOLS)
    found = []
    for fused in (True, False):
        engine = make_engine(load_model(str(grafted), device="cpu", dtype="float32"), fused=fused)
        assert bool(engine.slots) == fused
        found.append(asyncio.run(engine.sample(chunks, 2, SamplingParams(12, seed=3))))
        scored = asyncio.run(engine.logprobs([*chunks, type(chunks[0])(tuple(found[-1][0].tokens))]))
        assert np.abs(scored[-len(found[-1][0].tokens) :] - found[-1][0].logprobs).max() < 1e-3
        engine.close()
    assert [s.tokens for s in found[0]] == [s.tokens for s in found[1]]


@pytest.mark.parametrize("arch", ["graft", "qwen3_vl"])
def test_pictures_at_once_are_what_the_library_makes_of_each(arch, grafted, tmp_path):
    """`see` on raw grey pictures against the image processor and the tower's own forward."""
    from PIL import Image
    from transformers import AutoModelForImageTextToText, Qwen2VLImageProcessor

    folder = grafted if arch == "graft" else tiny_folder(tmp_path, arch)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    size = {"shortest_edge": 28 * 28, "longest_edge": 112 * 56}
    own = Qwen2VLImageProcessor(patch_size=14, merge_size=2, temporal_patch_size=2, image_mean=[lessons.white(model)] * 3, image_std=[lessons.INK] * 3, size=size)
    gray = np.random.default_rng(0).integers(0, 256, (3, 56, 112), dtype=np.uint8)
    made = own(images=[Image.open(io.BytesIO(png(one))).convert("RGB") for one in gray], return_tensors="pt")
    pixels, grid = lessons.patches(torch.from_numpy(gray), "cpu", 14, lessons.white(model))
    assert torch.allclose(pixels, made["pixel_values"], atol=1e-5) and torch.equal(grid, made["image_grid_thw"])
    with torch.no_grad():
        expected = model.model.get_image_features(made["pixel_values"], made["image_grid_thw"], return_dict=True)
        lessons.batch_attention(model)
        found = lessons.see(model, torch.from_numpy(gray), "cpu")
    assert torch.allclose(torch.cat(list(found.pooler_output)), torch.cat(list(expected.pooler_output)), atol=1e-5)
    deep = [list(getattr(one, "deepstack_features", None) or []) for one in (found, expected)]
    flat = [[torch.cat(list(layer)) if not torch.is_tensor(layer) else layer for layer in layers] for layers in deep]
    assert len(flat[0]) == len(flat[1]) == (arch == "qwen3_vl") and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*flat))


def png(gray):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(gray).save(out, format="PNG")
    return out.getvalue()


def test_calls_in_json_say_what_those_in_xml_say():
    """The same draws, written as Qwen2.5 writes them: the tiny model's lessons don't change."""
    for number in range(5):
        xml, asjson = lessons.manual(number, 0), lessons.manual(number, 0, json_calls=True)
        assert [trained for _, trained in xml] == [trained for _, trained in asjson]
        for (left, trained), (right, _) in zip(xml, asjson):
            if trained and "<tool_call>" in left:
                call = json.loads(right.split("\n")[1])
                assert f"<function={call['name']}>" in left
                assert all(f"<parameter={key}>\n{value}\n" in left for key, value in call["arguments"].items())
            else:
                assert left == right


@pytest.mark.parametrize("words, said", [
    (["--picture-size", "224x96"], "multiples of 28 pixels for graft-vlm"),
    (["--init", "x"], "--init belongs to tiny-vlm"),
    (["--width", "33"], "--width 33: a multiple of 64"),
    (["--objects", "-5"], "--objects: '-5' is not a whole number at least 1"),
])  # fmt: skip
def test_flags(words, said, capsys):
    with pytest.raises(SystemExit):
        pretrain.parse_args(["graft-vlm", *words])
    assert said in capsys.readouterr().err


def test_what_cannot_be_written_or_computed_on_is_said_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="--out .*file/x: Not a directory; choose another place"):
        pretrain.main(["tiny-vlm", "--out", str(tmp_path / "file" / "x")])
    with pytest.raises(SystemExit, match="--device nonsense: torch can't use it here"):
        pretrain.main(["tiny-vlm", "--out", str(tmp_path / "x"), "--device", "nonsense"])
    with pytest.raises(SystemExit):
        pretrain.parse_args(["tiny-vlm", "--language", "x"])
    assert "--language belongs to graft-vlm" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        pretrain.parse_args(["tiny-vlm", "--tower", "x"])
    assert "--tower belongs to graft-vlm" in capsys.readouterr().err


def test_a_language_model_that_does_not_fit_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="only models of the Qwen2 kind"):
        pretrain.graft(tiny_folder(tmp_path, "qwen3"), 2, 64)
    with pytest.raises(SystemExit, match="nowhere"):
        pretrain.graft(str(tmp_path / "nowhere"), 2, 64)

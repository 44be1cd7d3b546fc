"""tasks/spec_o3_hub.py on small folders with the schema of the public data sets. No network."""

import io
import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from spectra_fixtures import QUESTIONS, png, question, sample, small_bench, write_bench, write_sft
from spectra_fixtures import hub_refused as refused
from spectra_fixtures import run_hub as run

import prepare_data
from protocol import read_jsonl
from tasks import spec_o3_hub
from tasks.spec_o3_hub import CONTROL, RULES, repair_text

# ---------------------------------------------------------------- text


REPAIRS = {  # damaged -> mended; every rule is at work at least once
    "a \x1b[0;31mred\x1b[0m word": "a red word",
    "a \x0cchopped up\x0c curve": "a “chopped up” curve",
    "\x05saw\x0btooth\r shape": "“saw-tooth” shape",
    "C\x0002 C\x0082 C\x00b2 C\x02082 C\x02\x082 C\x082 C\x08\x02 C\x02 C\x178 C\x192": "C₂ C₂ C₂ C₂ C₂ C₂ C₂ C₂ C₂ C₂",
    "H\x00b1, H\x00b2 and H\x00b3": "Hα, Hβ and Hγ",
    "H\x03b1 and \x03bb = 5 \x03bcm, \x0394v": "Hα and λ = 5 μm, Δv",
    "ngstr\x00f6m, ngstr\x00m, ngstr\x0f6m, ngstr\x1fm": "ngström, ngström, ngström, ngström",
    "5.0 \x00b1 0.1 and 5\x00b10.1": "5.0 ± 0.1 and 5±0.1",
    "6563 \x00c5, 90\x00b0, 2\x00d73": "6563 Å, 90°, 2×3",
    "\x02248 3, \x02273 4, a\x02192b": "≈ 3, ≳ 4, a→b",
    "H\x031 H\x03b2 H\x033 H\x01 H\x02b H\x01b H\x03 ": "Hα Hβ Hγ Hα Hβ Hα Hγ ",
    "H\x03b1/\x02 and H\x03b2, \x03": "Hα/β and Hβ, γ",
    "6400\x136700, 6400\x05\x176700, 6400\x021367, 1\x012, 4\x145": "6400–6700, 6400–6700, 6400–67, 1–2, 4–5",
    "6563 \x15, 10 \x005, 12\x0c5 wide, $ \x16": "6563 Å, 10 Å, 12Å wide, $ Å",
    "M\x19s \x1cbroad\x1d \x18line\x19 \x14 non\x11blue": "M’s “broad” ‘line’ — non-blue",
}


@pytest.mark.parametrize("damaged", REPAIRS)
def test_repair_where_the_meaning_is_certain(damaged):
    assert repair_text(damaged) == REPAIRS[damaged]


def test_every_repair_rule_is_needed():
    """Without any one of the rules some example above is not mended."""
    for index, (name, _, _) in enumerate(RULES):
        rest = RULES[:index] + RULES[index + 1 :]

        def mend(text, rest=rest):
            for _, pattern, replacement in rest:
                text = pattern.sub(replacement, text)
            return text

        assert any(mend(damaged) != mended for damaged, mended in REPAIRS.items()), f"no example needs the rule {name!r}"


@pytest.mark.parametrize(
    "damaged, shown",
    [
        ("the \x03b line", "the [U+0003]b line"),
        ("CaH\x02 band", "CaH[U+0002] band"),  # not hydrogen: CaH2 and CaHβ are different things
        ("x\x00y", "x[U+0000]y"),
        ("a\x85b\x7f", "a[U+0085]b[U+007F]"),
        ("lone \ud835 half", "lone [U+D835] half"),
        ("H\x034861", "H[U+0003]4861"),
    ],
)
def test_P39_what_is_not_certain_becomes_a_visible_mark(damaged, shown):
    assert repair_text(damaged) == shown


def test_repair_never_touches_clean_text_and_leaves_no_control_character():
    rng = random.Random(0)
    clean = "Hα, C₂, b1 c5 02248 H1 5–6 Å\n\t\r\u2028\u2029 “x” 🌟 H\\x03b1"
    assert repair_text(clean) == clean
    alphabet = [chr(code) for code in range(0x20)] + list("HCab123cf5 06\u2028é") + ["\x7f", "\x9d", "\ud801"]
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=12))
        mended = repair_text(text)
        assert not CONTROL.search(mended)
        assert repair_text(mended) == mended


# ---------------------------------------------------------------- cold start


def test_sft_conversion_layout_and_relative_paths(tmp_path):
    raw = write_sft(tmp_path / "raw", [sample(n, task) for n, task in enumerate(QUESTIONS)])
    out = run(tmp_path, "sft", "--val-fraction", 0.2, sft=raw) / "sft"
    assert sorted(path.name for path in out.iterdir()) == [
        "images",
        "sft_cleaning.jsonl",
        "sft_stats.json",
        "sft_train.jsonl",
        "sft_val.jsonl",
    ]
    rows = {row["task"]: row for name in ("train", "val") for row in read_jsonl(out / f"sft_{name}.jsonl")}
    assert set(rows) == set(QUESTIONS)
    row = rows["gm"]
    assert row["id"] == "gm-spec-3.fits.gz-0" and row["label"] == "YES" and row["spectrum"] is None and row["picture"] is None
    assert row["images"] == ["images/00003-0.png", "images/00003-1.png"]
    assert all((out / image).read_bytes() == png(3) for image in row["images"])
    assert row["messages"] == [
        {"role": "system", "content": "You are an astronomer."},
        {"role": "user", "content": [{"type": "image", "image": "images/00003-0.png"}, {"type": "text", "text": "\nIs this an M-type Giant?\nLook at the lines."}]},
        {
            "role": "assistant",
            "reasoning_content": "Broad lines?",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "spectral_visualization_tool", "arguments": {"wavelength_range": [4800, 4920], "label": "Hβ"}}}],
        },
        {"role": "tool", "content": [{"type": "image", "image": "images/00003-1.png"}, {"type": "text", "text": "\nGenerated."}]},
        {"role": "assistant", "reasoning_content": "Seen.", "content": "<answer>\\boxed{YES} Broad.</answer>"},
    ]  # fmt: skip
    moved = tmp_path / "moved"
    out.rename(moved)
    assert all((moved / image).is_file() for row in read_jsonl(moved / "sft_train.jsonl") for image in row["images"])


def test_sft_split_is_by_object_seeded_and_counted(tmp_path):
    samples = []
    for number in range(40):
        entry = sample(number, source=f"star-{number // 2}")
        samples.append(entry | {"sample_index": number % 2})
    raw = write_sft(tmp_path / "raw", samples)
    out = run(tmp_path, "sft", "--val-fraction", 0.25, sft=raw) / "sft"
    train, val = (read_jsonl(out / f"sft_{name}.jsonl") for name in ("train", "val"))
    names = sorted({f"star-{n}" for n in range(20)})
    random.Random(42).shuffle(names)
    assert {row["source_name"] for row in val} == set(names[:5]) and len(val) == 10
    assert not {row["source_name"] for row in val} & {row["source_name"] for row in train}
    stats = json.loads((out / "sft_stats.json").read_text())
    assert (stats["train"], stats["val"], stats["val_objects"], stats["train_val_source_overlap"]) == (30, 10, 5, 0)
    assert stats["tasks_val"] == {"wd": {"YES": 10}} and stats["assistant_turns"] == 80 and stats["images"] == 80
    other = run(tmp_path / "b", "sft", "--val-fraction", 0.25, "--seed", 1, sft=raw) / "sft"
    assert {row["source_name"] for row in read_jsonl(other / "sft_val.jsonl")} != {row["source_name"] for row in val}


def test_sft_cleaning_log_and_unresolved_rows(tmp_path):
    samples = [sample(0, think="H\x03b1 is broad"), sample(1), sample(2, think="the \x03b line"), sample(3, argument="6563 \x00c5")]
    raw = write_sft(tmp_path / "raw", samples)
    out = run(tmp_path, "sft", "--val-fraction", 0, sft=raw) / "sft"
    rows, log = read_jsonl(out / "sft_train.jsonl"), read_jsonl(out / "sft_cleaning.jsonl")
    assert rows[0]["messages"][2]["reasoning_content"] == "Hα is broad"
    assert rows[2]["messages"][2]["reasoning_content"] == "the [U+0003]b line"
    assert rows[3]["messages"][2]["tool_calls"][0]["function"]["arguments"]["label"] == "6563 Å"
    assert [(entry["row"], entry["turn"]) for entry in log] == [(0, 2), (2, 2), (3, 2)]
    assert "H\x03b1" in log[0]["before"] and "Hα" in log[0]["after"]
    assert (log[2]["before"], log[2]["after"]) == ("6563 \x00c5", "6563 Å")  # it hid behind a JSON escape
    stats = json.loads((out / "sft_stats.json").read_text())
    assert stats["unresolved_rows"] == 1 and stats["unresolved_symbol_rows"] == [rows[2]["id"]] and stats["changed_messages"] == 3


def test_P39_separators_survive_and_split_no_record(tmp_path):
    think = "one\u2028two\u2029three\x85four\rfive\x00six \ud800 🌟"
    raw = write_sft(tmp_path / "raw", [sample(n, think=think) for n in range(3)])
    out = run(tmp_path, "sft", "--val-fraction", 0, sft=raw) / "sft"
    rows = read_jsonl(out / "sft_train.jsonl")
    assert len(rows) == 3 == (out / "sft_train.jsonl").read_bytes().count(b"\n")
    assert rows[0]["messages"][2]["reasoning_content"] == "one\u2028two\u2029three[U+0085]four\rfive[U+0000]six [U+D800] 🌟"
    assert len(read_jsonl(out / "sft_cleaning.jsonl")) == 3 and "\x85" in read_jsonl(out / "sft_cleaning.jsonl")[0]["before"]


def test_P12_tool_arguments_in_three_encodings_are_one_call(tmp_path):
    arguments = {"wavelength_range": [4800.5, 4920], "label": 'quote " and \u2028'}
    samples = [sample(n) for n in range(3)]
    for entry, value in zip(samples, (arguments, json.dumps(arguments), json.dumps(json.dumps(arguments))), strict=True):
        call = json.dumps({"name": "spectral_visualization_tool", "arguments": value})
        entry["conversations"][2]["value"] = f"<think>t</think><tool_call>{call}</tool_call>"
    out = run(tmp_path, "sft", "--val-fraction", 0, sft=write_sft(tmp_path / "raw", samples)) / "sft"
    calls = [row["messages"][2]["tool_calls"] for row in read_jsonl(out / "sft_train.jsonl")]
    assert calls[0] == calls[1] == calls[2] and calls[0][0]["function"]["arguments"] == arguments


def test_sft_pictures_that_no_turn_shows_are_left_out_and_counted(tmp_path):
    entry = sample(0)
    entry["images"].append("images/extra.png")
    out = run(tmp_path, "sft", "--val-fraction", 0, sft=write_sft(tmp_path / "raw", [entry])) / "sft"
    assert sorted(path.name for path in (out / "images").iterdir()) == ["00000-0.png", "00000-1.png"]
    assert json.loads((out / "sft_stats.json").read_text())["images_not_shown"] == 1


def break_sample(change):
    entries = [sample(0), sample(1)]
    change(entries)
    return entries


BROKEN_SFT = {
    "unknown task": (lambda e: e[1]["conversations"][1].update(value="<image>\nIs this a quasar?"), r"row 1: unknown task.*quasar"),
    "one-line question": (lambda e: e[1]["conversations"][1].update(value="<image>"), r"row 1: unknown task"),
    "duplicate id": (lambda e: e[1].update(source_name="spec-0.fits.gz"), r"row 1: the id wd-spec-0.fits.gz-0 was already used at .*row 0"),
    "label": (lambda e: e[1].update(ground_truth="MAYBE"), r"row 1: the label is 'MAYBE'"),
    "missing key": (lambda e: e[1].pop("source_name"), r"row 1: no 'source_name'"),
    "no turns": (lambda e: e[1].update(conversations=[]), r"row 1: no turns"),
    "speaker": (lambda e: e[1]["conversations"][2].update({"from": "robot"}), r"row 1, turn 2: a turn is from 'robot'"),
    "call": (lambda e: e[1]["conversations"][2].update(value="<tool_call>{nope</tool_call>"), r"row 1, turn 2: the tool call is not JSON"),
    "marks": (lambda e: e[1]["images"].pop(), r"row 1, turn 3: more <image> marks than pictures"),
    "outside": (lambda e: e[1]["images"].insert(0, "../secret.png"), r"row 1: the picture '../secret.png' is not a path below"),
}


@pytest.mark.parametrize("case", BROKEN_SFT)
def test_sft_broken_row_is_named_and_nothing_is_written(tmp_path, case):
    change, pattern = BROKEN_SFT[case]
    entries = break_sample(change)
    write_sft(tmp_path / "raw", [sample(0), sample(1)])
    (tmp_path / "raw" / "train_sharegpt.json").write_text(json.dumps(entries))
    message = refused(tmp_path, "sft", sft=tmp_path / "raw")
    assert re.search(pattern, message), message
    assert "train_sharegpt.json" in message


def test_sft_damaged_missing_and_odd_pictures(tmp_path):
    raw = write_sft(tmp_path / "raw", [sample(0), sample(1)])
    whole = png(1, (400, 300))
    for data, says in ((whole[: len(whole) // 2], "damaged"), (b"", "damaged"), (b"\x89PNG no", "damaged"), (None, "is missing")):
        path = raw / "images" / "1-1.png"
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        message = refused(tmp_path, "sft", sft=raw)
        assert says in message and "row 1" in message and "images/1-1.png" in message
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "BMP")
    path.write_bytes(buffer.getvalue())
    assert "is BMP; expected PNG" in refused(tmp_path, "sft", sft=raw)


def test_sft_error_in_a_worker_process_reads_the_same_and_keeps_the_earlier_output(tmp_path):
    raw = write_sft(tmp_path / "raw", [sample(n) for n in range(6)])
    out = run(tmp_path, "sft", sft=raw) / "sft"
    before = (out / "sft_train.jsonl").read_bytes()
    (raw / "images" / "5-0.png").write_bytes(b"broken")
    args = prepare_data.parse_args(
        ["sft", "--source", "hub", "--output", str(tmp_path / "out"), "--workers", "2", "--sft-source", str(raw)]
    )
    with pytest.raises(SystemExit, match="row 5, images/5-0.png: the picture is damaged"):
        spec_o3_hub.prepare_sft(args)
    assert (out / "sft_train.jsonl").read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["sft"]


def test_P50_fraction_zero_and_one(tmp_path):
    raw = write_sft(tmp_path / "raw", [sample(n) for n in range(4)])
    out = run(tmp_path, "sft", "--val-fraction", 0, sft=raw) / "sft"
    assert len(read_jsonl(out / "sft_train.jsonl")) == 4 and read_jsonl(out / "sft_val.jsonl") == []
    assert "--val-fraction 1: holds out all 4 objects" in refused(tmp_path, "sft", "--val-fraction", 1, sft=raw)


# ---------------------------------------------------------------- questions


def test_bench_needs_sft_first(tmp_path):
    message = refused(tmp_path, "bench", bench=small_bench(tmp_path / "bench"))
    assert "sft_train.jsonl" in message and "prepare_data.py sft" in message


def test_bench_rows_splits_null_redshift_and_overlaps(tmp_path):
    seen = ["wd-train-0.fits.gz", "wd-train-1.fits.gz", "wd-test-0.fits.gz"]
    raw = write_sft(tmp_path / "raw", [sample(n, source=name) for n, name in enumerate(seen)])
    nulls = [question("train", "cc", n, redshift=None if n < 4 else 0.0) for n in range(6)]
    bench = small_bench(tmp_path / "bench", train_cc=nulls)
    out = run(tmp_path, "all", "--val-fraction", 0.3, "--picture-size", "224x96", sft=raw, bench=bench) / "rl"
    parts = {name: read_jsonl(out / f"bench_{name}.jsonl") for name in ("rl_train", "dev", "test")}
    sources = {name: {row["source_name"] for row in rows} for name, rows in parts.items()}

    unseen = sorted(f"{task}-train-{n}.fits.gz" for task in QUESTIONS for n in range(6))
    unseen = [name for name in unseen if name not in seen]
    random.Random(42).shuffle(unseen)
    assert sources["dev"] == set(unseen[: round(28 * 0.3)])
    assert len(parts["rl_train"]) == 30 - len(parts["dev"]) and len(parts["test"]) == 30
    assert {"wd-train-0.fits.gz", "wd-train-1.fits.gz"} <= sources["rl_train"]  # RL may repeat cold-start objects, dev may not

    stats = json.loads((out / "bench_stats.json").read_text())
    assert (stats["sft_dev_source_overlap"], stats["sft_test_source_overlap"], stats["rl_train_dev_source_overlap"]) == (0, 1, 0)
    assert stats["redshift_null"] == {"train_cc": 4} and stats["dev"] == len(parts["dev"])
    row = next(row for row in parts["rl_train"] + parts["dev"] if row["id"] == "train-cc-train-cc-0003-uuid")
    assert row["label"] == "YES" and row["task"] == "cc" and row["picture"] == [224, 96]
    assert row["messages"] == [
        {"role": "user", "content": [{"type": "image", "image": row["images"][0]}, {"type": "text", "text": "\nIs this a Carbon Star?"}]}
    ]
    assert (out / row["images"][0]).read_bytes() == png(3) and not Path(row["spectrum"]).is_absolute()
    with np.load(out / row["spectrum"]) as data:
        assert sorted(data.files) == ["flux", "redshift", "wavelength"]
        assert float(data["redshift"]) == 0.0 and data["flux"].tolist() == [3.0] * 50 and data["wavelength"][-1] == 9000
    test = next(row for row in parts["test"] if row["task"] == "cc")
    assert float(np.load(out / test["spectrum"])["redshift"]) == 0.001


def test_two_runs_and_any_number_of_workers_write_the_same_bytes(tmp_path):
    raw, bench = write_sft(tmp_path / "raw", [sample(n) for n in range(5)]), small_bench(tmp_path / "bench")

    def content(folder):
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix != ".npz"
        }

    one = content(run(tmp_path / "a", "all", sft=raw, bench=bench))
    again = content(run(tmp_path / "a", "all", sft=raw, bench=bench))
    two = content(run(tmp_path / "b", "all", "--workers", 2, sft=raw, bench=bench))
    assert one == again == two and len(one) > 30


def test_P38_nested_pictures_in_many_row_groups(tmp_path):
    rows = [question("train", "wd", n) for n in range(50)]
    path = write_bench(tmp_path, {"train_wd": rows}, row_group_size=7) / "data" / "train_wd.parquet"
    assert pq.ParquetFile(path).num_row_groups == 8
    read = list(spec_o3_hub.parquet_rows(path))
    assert [row["extra_info"]["index"] for row in read] == [row["extra_info"]["index"] for row in rows]
    assert [row["images"][0]["bytes"] for row in read] == [row["images"][0]["bytes"] for row in rows]


@pytest.mark.parametrize("fails_at, largest", [(0, 1), (2, 1), (0, 0)])
def test_P38_a_row_group_too_large_for_a_batch_is_read_row_by_row(tmp_path, monkeypatch, fails_at, largest):
    """The reader raises what pyarrow raises for list<struct<bytes>> beyond 2 GB, for batches larger than `largest` rows."""
    rows = [question("train", "wd", n) for n in range(70)]
    path = write_bench(tmp_path, {"train_wd": rows}, row_group_size=35) / "data" / "train_wd.parquet"
    whole = pq.ParquetFile.iter_batches

    def limited(self, batch_size, **more):
        for index, batch in enumerate(whole(self, batch_size, **more)):
            if batch_size > largest and index >= fails_at:
                raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", limited)
    if largest:
        read = list(spec_o3_hub.parquet_rows(path))
        assert [row["extra_info"]["index"] for row in read] == [row["extra_info"]["index"] for row in rows]
    else:
        with pytest.raises(SystemExit, match="row 0 of row group 0 is too large.*smaller row groups"):
            list(spec_o3_hub.parquet_rows(path))


def changed(row, path, value):
    record, *keys = row, *path.split(".")
    for key in keys[:-1]:
        record = record[key]
    record[keys[-1]] = value
    return row


KWARGS = "extra_info.tools_kwargs.spectral_visualization_tool.create_kwargs"
BROKEN_BENCH = {
    "picture": (lambda r: changed(r, "images", [{"bytes": png(1, (300, 200))[:200], "path": None}]), r"row 2: the picture is damaged"),
    "no bytes": (lambda r: changed(r, "images", [{"bytes": None, "path": "a.png"}]), r"row 2: no 'bytes'"),
    "label": (lambda r: changed(r, "reward_model.ground_truth", "yep"), r"row 2: the label is 'yep'"),
    "null name": (lambda r: changed(r, "extra_info.name", None), r"row 2: no 'extra_info.name'"),
    "duplicate": (lambda r: changed(r, "extra_info.index", "train-wd-0001-uuid"), r"row 2: the id .* was already used"),
    "lengths": (lambda r: changed(r, f"{KWARGS}.flux", [1.0]), r"row 2: 50 wavelengths and 1 fluxes"),
    "no flux": (lambda r: changed(r, f"{KWARGS}.flux", None), r"row 2: no 'flux'"),
    "marks": (lambda r: changed(r, "prompt", [{"role": "user", "content": "<image><image>"}]), r"row 2: more <image> marks"),
}


@pytest.mark.parametrize("case", BROKEN_BENCH)
def test_bench_broken_row_is_named_and_nothing_is_written(tmp_path, case):
    change, pattern = BROKEN_BENCH[case]
    raw = write_sft(tmp_path / "raw", [sample(n) for n in range(2)])
    run(tmp_path, "sft", sft=raw)
    rows = [question("train", "wd", n) for n in range(4)]
    change(rows[2])
    message = refused(tmp_path, "bench", bench=write_bench(tmp_path / "bench", {"train_wd": rows}))
    assert re.search(pattern, message) and "train_wd.parquet" in message, message


def test_bench_unknown_file_missing_column_and_damaged_file(tmp_path):
    run(tmp_path, "sft", sft=write_sft(tmp_path / "raw", [sample(n) for n in range(2)]))
    bench = write_bench(tmp_path / "bench", {"train_qq": [question("train", "wd", 0)]})
    assert re.search(r"train_qq.parquet: unknown task", refused(tmp_path, "bench", bench=bench))
    (bench / "data" / "train_qq.parquet").unlink()
    assert "no test_cc.parquet" in refused(tmp_path, "bench", bench=bench)
    path = bench / "data" / "train_wd.parquet"
    pq.write_table(pa.table({"prompt": ["x"], "labels": [1]}), path)
    assert re.search(
        r"train_wd.parquet: no column images, reward_model, extra_info; it has prompt, labels", refused(tmp_path, "bench", bench=bench)
    )
    path.write_bytes(b"PAR1 no such file PAR1")
    assert "not a readable Parquet file" in refused(tmp_path, "bench", bench=bench)


def test_bench_subset_of_questions_says_what_is_left_out(tmp_path, capsys):
    run(tmp_path, "sft", sft=write_sft(tmp_path / "raw", [sample(n) for n in range(2)]))
    bench = write_bench(tmp_path / "bench", {"train_wd": [question("train", "wd", n) for n in range(10)]})
    out = run(tmp_path, "bench", bench=bench) / "rl"
    assert "test_wd" in capsys.readouterr().out
    assert len(read_jsonl(out / "bench_dev.jsonl")) == 1 and read_jsonl(out / "bench_test.jsonl") == []


# ---------------------------------------------------------------- download and folders


def fake_hub(monkeypatch, folders, calls):
    import huggingface_hub

    def snapshot_download(repo, **settings):
        calls.append((repo, settings))
        return str(folders[repo])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_download_is_pinned_and_leaves_the_hub_settings_alone(tmp_path, monkeypatch):
    raw, bench = write_sft(tmp_path / "raw", [sample(n) for n in range(30)]), small_bench(tmp_path / "bench")
    calls = []
    fake_hub(monkeypatch, {spec_o3_hub.SFT_REPO: raw, spec_o3_hub.BENCH_REPO: bench}, calls)
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.invalid")
    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    before = dict(os.environ)
    out = run(tmp_path, "all", "--download-workers", 3)
    assert dict(os.environ) == before
    assert [(repo, settings["revision"], settings["max_workers"]) for repo, settings in calls] == [
        (spec_o3_hub.SFT_REPO, "7ea73e408ffe6a0b25e5f738e517a71217eb7fbc", 3),
        (spec_o3_hub.SFT_REPO, "7ea73e408ffe6a0b25e5f738e517a71217eb7fbc", 3),
        (spec_o3_hub.BENCH_REPO, "0e003e00ac128c665acd702af3dc0992c4161637", 3),
    ]
    assert all(settings["repo_type"] == "dataset" and "local_dir" not in settings for _, settings in calls)  # the user's cache
    assert json.loads((out / "sft" / "sft_stats.json").read_text())["dataset_revision"] == spec_o3_hub.SFT_REVISION
    calls.clear()
    smoke = run(tmp_path / "s", "sft", "--smoke") / "sft"
    assert len(read_jsonl(smoke / "sft_train.jsonl")) + len(read_jsonl(smoke / "sft_val.jsonl")) == 24
    assert len(calls[1][1]["allow_patterns"]) == 48  # the pictures of the 24 trajectories, not all 4,702


def test_second_run_reuses_the_cache_without_a_connection(tmp_path, monkeypatch):
    """The hub client itself, offline, on a cache as it leaves one behind."""
    import huggingface_hub

    snapshot = tmp_path / "hub" / "datasets--Maxwell-Jia--Spec-o3-ColdStartSFT" / "snapshots" / spec_o3_hub.SFT_REVISION
    write_sft(snapshot, [sample(n) for n in range(3)])
    whole = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *names, **more: whole(*names, **more, cache_dir=tmp_path / "hub", local_files_only=True),
    )
    out = run(tmp_path, "sft", "--val-fraction", 0) / "sft"
    assert len(read_jsonl(out / "sft_train.jsonl")) == 3
    assert "cannot be downloaded" in refused(tmp_path, "bench")  # this one is not in the cache


def test_partly_cached_download_is_not_mistaken_for_the_whole(tmp_path, monkeypatch):
    raw = write_sft(tmp_path / "raw", [sample(n) for n in range(3)])
    fake_hub(
        monkeypatch,
        {spec_o3_hub.SFT_REPO: raw, spec_o3_hub.BENCH_REPO: write_bench(tmp_path / "b", {"train_wd": [question("train", "wd", 0)]})},
        [],
    )
    run(tmp_path, "sft")
    assert re.search(r"no test_cc.parquet, .*complete the download", refused(tmp_path, "bench"))


def test_no_connection_is_one_line_with_advice(tmp_path, monkeypatch):
    import huggingface_hub

    def offline(*names, **settings):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    message = refused(tmp_path, "sft")
    assert "HF_ENDPOINT" in message and "--sft-source" in message and "no route to host" in message


def test_token_counts_with_a_model(tmp_path, monkeypatch):
    """With --base-model each row gets the lengths of its training sequence, through the protocol's own functions."""
    import protocol

    def sft_datum(chat, messages, tools, folder, max_seq_len=None):
        assert chat == ("a-model", "a-revision") and tools[0]["function"]["name"] == "spectral_visualization_tool"
        pictures = [part["image"] for m in messages if isinstance(m["content"], list) for part in m["content"] if part["type"] == "image"]
        assert all((Path(folder) / picture).is_file() for picture in pictures)
        chunks = [protocol.TextChunk((1,) * 9), *(protocol.ImageChunk(b"", 20) for _ in pictures)]
        size = sum(map(len, chunks))
        return protocol.Datum(chunks, np.zeros(size, int), np.r_[np.zeros(size - 4), np.ones(4)].astype(np.float32))

    monkeypatch.setattr(protocol, "load_chat", lambda model, revision=None: (model, revision))
    monkeypatch.setattr(protocol, "sft_datum", sft_datum)
    raw = write_sft(tmp_path / "raw", [sample(n) for n in range(2)])
    out = run(tmp_path, "sft", "--val-fraction", 0, "--base-model", "a-model", "--model-revision", "a-revision", sft=raw) / "sft"
    row, stats = read_jsonl(out / "sft_train.jsonl")[0], json.loads((out / "sft_stats.json").read_text())
    assert (row["length"], row["image_tokens"], row["supervised_tokens"]) == (50, [20, 20], 4)
    assert (stats["text_tokens"], stats["visual_tokens"], stats["supervised_tokens"], stats["over_16384"]) == (20, 80, 8, 0)

"""analysis.py: everything is read from folders; figures, paired tests, tables and a viewer that shows hostile text as text."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import png

import analysis
import comparing
import metrics
import runs
from protocol import json_line

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><!-- \x1b[31mred\x1b[0m "
    "\u202egnp.exe\u2066 \x00 a\u2028b\u0085c \ud800 &lt;b&gt; 😀"
)


def record(i, label="YES", prediction="YES", text="Looked.\n</think>\n\n<answer>\\boxed{YES} fine</answer>", sample=0, images=(), **extra):
    correct = int(label == prediction) if label else None
    return {
        "id": f"row-{i}",
        "task": ("wd", "cv")[i % 2],
        "sample_index": sample,
        "seed": 1,
        "sampler_version": 2,
        "finish_reason": "answer",
        "prediction": prediction,
        "format_ok": True,
        "reward": correct,
        "parts": {"correct": correct} if label else {},
        "seconds": {},
        "error": "",
        "turns": [
            {
                "tokens": [1, 2],
                "logprobs": [-0.5, -0.25],
                "text": text,
                "stop_reason": "stop",
                "seconds": {"sample": 0.5},
                "inline": [],
                "action": {"kind": "answer", "call": None, "answer": prediction, "text": "", "error": ""},
                "observation": {"text": text, "images": list(images), "ok": True, "done": False, "role": "tool"} if images else None,
            }
        ],
        "sequence": [{"context": [1]}, *({"image": name, "positions": 4, "format": "png"} for name in images), {"sampled": 2}],
        "eval": {
            "label": label,
            "source_name": "s",
            "prediction": prediction,
            "correct": correct,
            "choices": None,
            "prompt": [{"role": "user", "text": f"<image>\nRow {i}?"}],
            "sampled_tokens": 2,
        },
        **extra,
    }


def output(folder, records, **settings):
    """An evaluation folder as eval.py leaves it."""
    folder.mkdir(parents=True)
    folder.joinpath("trajectories.jsonl").write_bytes(b"".join(map(json_line, records)))
    kept = [r for r in records if r["finish_reason"] != "error"]
    flags = {}
    for r in kept:
        if r["eval"]["correct"] is not None:
            flags.setdefault(r["id"], []).append(r["eval"]["correct"])
    report = {
        "score": {"of_played": metrics.share_report(flags)},
        "n_error": len(records) - len(kept),
        "mean_turns": 1.0,
        "tool_calls": 3,
        "tool_successes": 2,
        "config": {"settings": {"temperature": 0.6, "max_tokens": 2048, **settings}},
    }
    columns = [
        [r["eval"]["label"] for r in kept],
        [r["prediction"] for r in kept],
        [r["task"] for r in kept],
        [True] * len(kept),
        [r["id"] for r in kept],
    ]
    folder.joinpath("metrics.json").write_text(json.dumps(report | metrics.binary_report(*columns)))
    return folder


def graded(right, total=40, sample=0):
    """`total` rows, alternately YES and NO, the first `right` of them answered right."""
    rows = []
    for i in range(total):
        label = "YES" if i // 2 % 2 else "NO"
        rows.append(record(i, label, label if i < right else {"YES": "NO", "NO": "YES"}[label], sample=sample))
    return rows


@pytest.fixture
def two(tmp_path):
    return output(tmp_path / "sft", graded(20)), output(tmp_path / "rl", graded(32), max_tokens=6144)


def is_drawn(path):
    """The picture exists and isn't blank."""
    from matplotlib.image import imread

    return path.with_name(path.name + ".pdf").read_bytes().startswith(b"%PDF") and imread(path.with_name(path.name + ".png")).std() > 0.02


def test_compare_draws_what_the_folders_say(two, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    texts = []
    monkeypatch.setattr(
        plt,
        "close",
        lambda figure: texts.extend(
            text for axis in figure.axes for text in [axis.get_title("left"), *(item.get_text() for item in axis.texts)]
        ),
    )
    analysis.main(["compare", *map(str, two), "--save", str(tmp_path / "figure")])
    assert is_drawn(tmp_path / "figure") and {"50.0", "80.0", "20", "32", "always YES", "Correct answers of 40", "Accuracy (%)"} <= set(
        texts
    )


def test_compare_published_needs_no_folder_and_names_all_five(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    ticks = []
    monkeypatch.setattr(plt, "close", lambda figure: ticks.extend(item.get_text() for item in figure.axes[0].get_yticklabels()))
    analysis.main(["compare", "--published", "--save", str(tmp_path / "figure")])
    assert is_drawn(tmp_path / "figure") and sum("(published)" in tick for tick in ticks) == 5


def test_table_has_intervals_the_published_rows_and_the_baseline(two, capsys):
    analysis.main(["table", *map(str, two), "--published", "--names", "a|b,RL"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 5 + 2 + 1 and "Qwen3.5-9B RL epoch 3 (published) | 74.6 [68.9, 79.6] | 75.9 |" in lines[6]
    assert lines[7].startswith("| a\\|b | 50.0 [35.2, 64.8] |") and "| 20 / 40 | 1.00 | 3 (2) | 0 | 2048 |" in lines[7]
    assert lines[9].startswith("| baseline: always YES (a\\|b) | 50.0 |")
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_output_without_labels_has_a_table_and_no_figure(tmp_path, capsys):
    folder = output(tmp_path / "o", [record(i, None) | {"reward": None} for i in range(3)])
    analysis.main(["table", str(folder)])
    assert "| o | - | - | 100.0" in capsys.readouterr().out


def test_paired_test_and_its_warnings(two, capsys):
    result = comparing.paired(*two)
    assert (result["only_first"], result["only_second"], result["test"]) == (0, 12, "exact McNemar") and result["p"] == pytest.approx(
        2 / 2**12
    )
    assert result["difference"] == pytest.approx(0.3) and 0 < result["low"] < 0.3 < result["high"]
    assert result["macro_f1"]["second"] > result["macro_f1"]["first"] and result["macro_f1"]["low"] > 0
    assert "max_tokens differs (2048 and 6144)" in capsys.readouterr().out


def test_a_setting_that_is_empty_is_shown_as_none(tmp_path, capsys):
    comparing.paired(output(tmp_path / "a", graded(20), inject="", temperature=0), output(tmp_path / "b", graded(20), inject="Look twice.", temperature=1))
    said = capsys.readouterr().out
    assert "note: inject differs (none and Look twice.)" in said and "note: temperature differs (0 and 1)" in said


def test_paired_uses_rows_that_both_have_and_leaves_failures_out(tmp_path, capsys):
    first = output(tmp_path / "a", graded(20))
    second = output(tmp_path / "b", [r | ({"finish_reason": "error"} if i == 39 else {}) for i, r in enumerate(graded(20))][5:])
    result = comparing.paired(first, second)
    assert result["problems"] == 34 and result["difference"] == 0 and result["p"] == 1
    assert "34 in both, 6 only in" in capsys.readouterr().out


def test_paired_with_several_samples_takes_row_means(tmp_path):
    first = output(tmp_path / "a", graded(20) + graded(20, sample=1))
    second = output(tmp_path / "b", graded(32) + graded(30, sample=1))
    result = comparing.paired(first, second)
    assert (
        result["problems"] == 40
        and result["test"].startswith("sign-flip")
        and result["difference"] == pytest.approx(11 / 40)
        and result["p"] < 0.01
    )


def test_paired_refuses_other_rows_and_other_labels(tmp_path):
    first = output(tmp_path / "a", graded(20))
    with pytest.raises(SystemExit, match="no labelled row in common"):
        comparing.paired(first, output(tmp_path / "b", [r | {"id": f"x{r['id']}"} for r in graded(20)]))
    swapped = [r | {"eval": r["eval"] | {"label": {"YES": "NO", "NO": "YES"}[r["eval"]["label"]]}} for r in graded(20)]
    with pytest.raises(SystemExit, match="disagree about the label of 40 rows"):
        comparing.paired(first, output(tmp_path / "c", swapped))


def run_folder(folder, lines):
    folder.mkdir()
    folder.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_curves_draw_what_the_runs_logged(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    titles = []
    monkeypatch.setattr(plt, "close", lambda figure: titles.extend(axis.get_title("left") for axis in figure.axes if axis.get_visible()))
    lines = [
        {"step": i, "time": i, "reward/mean": i / 50 if i % 7 else None, "kl": 0.01 * (i % 3), "lr": 1e-6, "note": "text"}
        for i in range(1, 50)
    ]
    first, second = (
        run_folder(tmp_path / "one", lines),
        run_folder(tmp_path / "two", [*lines[:3], {"step": 4, "val/loss": 0.5}, {"step": 5, "val/loss": 0.4}]),
    )
    (first / "metrics.jsonl").write_text((first / "metrics.jsonl").read_text() + '{"step": 51, "rew')  # still being written
    analysis.main(["curves", str(first), str(second)])
    assert is_drawn(first / "curves") and titles == ["reward/mean", "val/loss", "kl"]  # constants such as lr tell nothing
    titles.clear()
    analysis.main(["curves", str(first), "--keys", "lr,k*", "--save", str(tmp_path / "chosen")])
    assert is_drawn(tmp_path / "chosen") and titles == ["lr", "kl"]


def test_curves_of_one_step(tmp_path):
    analysis.main(["curves", str(run_folder(tmp_path / "run", [{"step": 1, "loss": 2.0}]))])
    assert is_drawn(tmp_path / "run" / "curves")


@pytest.mark.parametrize("lines,match", [([], "no numbers yet"), ([{"step": 1}], "no numbers yet")])
def test_curves_of_nothing_is_one_line(tmp_path, lines, match):
    with pytest.raises(SystemExit, match=match):
        analysis.main(["curves", str(run_folder(tmp_path / "run", lines))])


def test_running_mean_by_hand():
    assert analysis.running_mean(np.array([1.0, 2, 3, 4]), 1).tolist() == [1, 2, 3, 4]
    assert analysis.running_mean(np.array([1.0, 2, 3, 4]), 3).tolist() == [1.5, 2, 3, 3.5]
    assert analysis.running_mean(np.array([5.0]), 9).tolist() == [5]


def blocks(page):
    return {name: json.loads(text) for name, text in re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', page, re.S)}


@pytest.fixture
def hostile(tmp_path):
    folder = output(
        tmp_path / "<b>out",
        [record(0, text=HOSTILE, images=["images/a.png", "../metrics.json"]), record(1, text="A" * 1_000_000), record(2)],
    )
    (folder / "images").mkdir()
    (folder / "images" / "a.png").write_bytes(png())
    return folder


def test_P46_hostile_text_stays_inside_its_block(hostile, capsys):
    analysis.main(["report", str(hostile)])
    page = (hostile / "report.html").read_text(encoding="utf-8")
    data = blocks(page)
    assert data["t0"]["turns"][0]["text"] == HOSTILE and len(data["t1"]["turns"][0]["text"]) == 1_000_000 and len(data["index"]) == 3
    assert (
        "owned'" not in page.replace("\\u003c", "<").split("</main>")[0]
        and "<script>document" not in page
        and "onerror" in data["t0"]["turns"][0]["text"]
    )
    assert len(re.findall(r"<script>", page)) == 1 and "<b>out" not in page and "&lt;b&gt;out" in page
    assert page.isascii() or not set("\u2028\u202e\x1b") & set(page)
    assert "3 of 3 trajectories, 1 pictures" in capsys.readouterr().out


def test_P46_the_page_may_run_only_its_own_script_and_load_nothing(hostile):
    analysis.main(["report", str(hostile)])
    page = (hostile / "report.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", page, re.S)[1]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in page and "default-src 'none'; img-src data:" in page
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", script) and "http" not in script


def test_report_carries_each_picture_once_and_marks_the_missing(hostile):
    analysis.main(["report", str(hostile)])
    page = (hostile / "report.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<script type="text/plain" id="p(\d+)">(.*?)</script>', page)
    assert [base64.b64decode(text) for _, text in pictures] == [png()]
    assert blocks(page)["t0"]["pictures"] == [0, -1] == blocks(page)["t0"]["turns"][0]["pictures"]


@pytest.mark.skipif(not shutil.which("chromium"), reason="no browser here")
def test_P46_in_a_browser(hostile, tmp_path):
    analysis.main(["report", str(hostile)])
    done = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--no-first-run",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            f"file://{hostile / 'report.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    shown = done.stdout
    assert "<title>&lt;b&gt;out</title>" in shown and "&lt;/script&gt;&lt;script&gt;document.title" in shown
    assert "⟨U+001B⟩[31mred" in shown and "⟨U+202E⟩gnp.exe" in shown and "⟨U+2028⟩" in shown and "⟨U+0000⟩" in shown
    assert "3 of 3 trajectories" in shown and 'src="data:image/png;base64,' in shown and "(picture not found)" in shown


def test_report_of_a_training_run_takes_prompts_from_its_rows(tmp_path):
    rows = [
        {"id": "row-4", "messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "Four?"}]}]}
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(map(json_line, rows)))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"flags": {"data": str(tmp_path / "rows.jsonl")}}))
    plain = record(4, step=7)
    plain.pop("eval")
    (run / "trajectories.jsonl").write_bytes(json_line(plain) * 3 + b'{"id": "torn')
    analysis.main(["report", str(run), "--limit", "2", "--save", str(tmp_path / "page.html")])
    data = blocks((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["t0"]["prompt"] == [{"role": "user", "text": "<image>\nFour?"}] and len(data["index"]) == 2
    assert data["index"][0]["step"] == 7 and data["index"][0]["correct"] is True


def test_P39_lines_are_ended_by_newlines_only(tmp_path):
    texts = ["a\u2028b", "a\u2029b", "a\x85b", "a\rb", "a\x0bb", "\x00", "\ud800", "😀"]
    (tmp_path / "t.jsonl").write_bytes(
        b"".join(json.dumps({"text": text}, ensure_ascii=text == "\ud800").encode() + b"\n" for text in texts)
    )
    assert [line["text"] for line in runs.stream_jsonl(tmp_path / "t.jsonl")] == texts


def test_a_reader_that_has_seen_enough_is_no_error():
    """`analysis.py ledger experiments/ | head` once ended in a traceback."""
    root = Path(analysis.__file__).parent
    with subprocess.Popen([sys.executable, "analysis.py", "ledger", "experiments"], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(timeout=60) == 0


def test_broken_line_names_its_place(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{broken\n{"a": 2}\n')
    with pytest.raises(SystemExit, match="t.jsonl, line 2"):
        list(runs.stream_jsonl(tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    "arguments,match",
    [
        (["compare", "{}/nowhere"], "no metrics.json"),
        (["table", "{}/nowhere"], "no metrics.json"),
        (["paired", "{}/a", "{}/b"], "no metrics.json"),
        (["report", "{}/nowhere"], "not there"),
        (["curves", "{}/nowhere"], "metrics.jsonl"),
    ],
)
def test_missing_folders_are_one_line(tmp_path, arguments, match):
    with pytest.raises(SystemExit, match=match):
        analysis.main([word.format(tmp_path) for word in arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["compare"],
        ["paired", "a"],
        ["report", "a", "--limit", "-1"],
        ["curves", "a", "--smooth", "-1"],
        ["table", "a", "b", "--names", "one"],
    ],
)
def test_P50_bad_arguments_stop_at_parsing(arguments):
    with pytest.raises(SystemExit) as error:
        analysis.parse_args(arguments)
    assert error.value.code == 2


# ---------------------------------------------------------------- solved sets, cross tables


def sampled(folder, rights, samples=8, **settings):
    """An evaluation of `samples` samples a row: rights[i] of row i are right."""
    return output(folder, [record(i, prediction="YES" if s < right else "NO", sample=s) for i, right in enumerate(rights) for s in range(samples)],
                  **settings)  # fmt: skip


def test_solved_says_that_the_same_rows_are_solved_more_often(tmp_path, capsys):
    first, second = sampled(tmp_path / "sft", [1, 2, 0, 0, 4, 8]), sampled(tmp_path / "rl", [7, 8, 0, 1, 0, 8])
    analysis.main(["solved", str(first), str(second)])
    shown = capsys.readouterr().out
    assert "| k | both | only sft | only rl | neither | pass@k | difference | p |" in shown
    assert "| 8 | 3 | 1 | 1 | 1 | 66.7 -> 66.7 % |" in shown and "1 (exact McNemar)" in shown
    assert "| 1 | 1.4 |" in shown and "31.2 -> 50.0 %" in shown  # 15 and 24 of 48 samples; both: 7/64 + 2/8 + 1
    assert "only sft, of all samples: row-4\n" in shown and "only rl, of all samples: row-3\n" in shown
    analysis.main(["solved", str(first), str(second), "--pass-at", "2,4"])
    assert "| 4 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--pass-at 9: a row has only 8 samples"):
        analysis.main(["solved", str(first), str(second), "--pass-at", "9"])
    with pytest.raises(SystemExit) as stopped:
        analysis.main(["solved", str(first), str(second), "--pass-at", "0,x"])
    assert stopped.value.code == 2 and "--pass-at '0,x'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no labelled row in common"):
        analysis.main(["solved", str(first), str(output(tmp_path / "other", []))])


def test_cross_puts_models_against_data(tmp_path, capsys):
    folders = []
    for model, wording, right in (("sft", "r1", 20), ("sft", "neutral", 24), ("rl", "r1", 8), ("rl", "neutral", 22)):
        folder = output(tmp_path / f"{model}-{wording}", graded(right), task="gsm8k", model_path=f"runs/{model}/checkpoints/step-9/sampler")
        report = json.loads((folder / "metrics.json").read_text())
        report["config"]["flags"] = {"data": f"datasets/gsm8k/rl/bench_dev_{wording}.jsonl"}
        (folder / "metrics.json").write_text(json.dumps(report))
        folders.append(str(folder))
    analysis.main(["cross", *folders])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model | gsm8k bench_dev_r1 | gsm8k bench_dev_neutral |" and lines[2].startswith("| sft step-9 | 50.0 %  [35.2, 64.8]  n=40, 2 tokens |")
    assert lines[4].startswith("| difference | -30.0 points [") and "| -5.0 points [" in lines[4] and "+0 tokens" in lines[4]
    analysis.main(["cross", folders[0], "--by-task"])
    assert capsys.readouterr().out.splitlines()[0] == "| model | cv | wd |"
    with pytest.raises(SystemExit, match="are both sft step-9 on gsm8k bench_dev_r1"):
        analysis.main(["cross", folders[0], folders[0]])
    analysis.main(["cross", str(output(tmp_path / "none", graded(0) + graded(0, sample=1)))])
    assert "| 0.0 %  [0.0, 8.8]  n=40 rows, 2 tokens |" in capsys.readouterr().out  # not [0.0, 0.0] n=80
    analysis.main(["cross", folders[0], folders[3]])  # half of the table
    assert "| - |" in capsys.readouterr().out


@pytest.mark.parametrize("command, file, content, says", [
    ("curves", "metrics.jsonl", "7\n", "metrics.jsonl, line 1: not as a training run writes it"),
    ("curves", "metrics.jsonl", '{"step": 1, "loss": 2}\n{"loss": 2}\n', "metrics.jsonl, line 2: not as a training run writes it"),
    ("table", "metrics.json", "[]", r"metrics.json: not as eval.py writes it \(no JSON object\)"),
    ("table", "metrics.json", "{}", r"score.of_played is None, not an object"),
    ("compare", "metrics.json", '{"score": {"of_played": {"value": 0.5, "n": 2}}}', "config is None, not an object"),
    ("compare", "metrics.json", '{"score": {"of_played": {"value": "half", "n": 2}}, "config": {}}', "score.of_played.value is 'half', not a number"),
    ("table", "metrics.json", '{"score": {"of_played": {}}, "config": {}}', "score.of_played has no n"),
    ("cross", "trajectories.jsonl", "7\n", r"trajectories.jsonl, line 1: no trajectory .*\(no id, task, finish_reason\)"),
    ("cross", "trajectories.jsonl", '{"id": "a", "task": "x", "finish_reason": "answer", "eval": 3}\n', "line 1: eval is 3, not as eval.py"),
    ("report", "trajectories.jsonl", '{"id": "a"}\n', r"line 1: no trajectory .*\(no finish_reason, turns, parts\)"),
    ("report", "trajectories.jsonl", '{"id": "a", "finish_reason": "", "parts": {}, "turns": [3]}\n', "turns is not a list of objects with text"),
])  # fmt: skip
def test_a_record_that_nobody_wrote_names_its_file_and_line(tmp_path, command, file, content, says):
    folder = output(tmp_path / "a", graded(4))
    (folder / file).write_text(content)
    with pytest.raises(SystemExit, match=says):
        analysis.main([command, str(folder)])


def test_macro_f1_over_few_tasks_says_so(tmp_path, capsys):
    """Three rows: wd has a positive, cv none, so Macro F1 is that of wd alone."""
    folder = output(tmp_path / "few", [record(0), record(2, "NO", "NO"), record(1, "NO", "NO")])
    analysis.main(["table", str(folder)])
    shown = capsys.readouterr().out
    assert "| 100.0 [100.0, 100.0] (1 of 2 tasks) |" in shown
    others = output(tmp_path / "others", [record(2, "NO", "YES"), record(4), record(1, "NO", "NO")])
    comparing.paired(folder, others)
    assert "Macro F1: none of the common rows is positive" in capsys.readouterr().out

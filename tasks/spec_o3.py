"""Spectra vetting: look at a stellar spectrum, zoom where it matters, answer YES or NO (seed 001; Spec-o3, sections 3-4).

    python prepare_data.py all --task spec_o3 --source synthetic       # no download, minutes on two cores
    python prepare_data.py all --task spec_o3 --source hub             # the paper's public data
    python prepare_data.py bench --task spec_o3 --source files --spectra DIR --labels labels.csv

Rows: id, task (cv, cc, ss, gm, wd), source_name, label (YES, NO or null), messages, images, spectrum (path of an npz with wavelength [n] in Å, observed
frame, flux [n], redshift), picture ([width, height] in pixels, or null for the size by window width). SFT rows hold whole trajectories.

To make a task of your own, copy this file: `TOOLS`, `start`, `reward`, `metrics` and the two `prepare_` functions are all that the scripts call.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protocol import Action, Observation, ToolCall
from tools import ZOOM_TOOL, render_spectrum, zoom_spectrum

TOOLS = [ZOOM_TOOL]
ANSWER = re.compile(r"<answer>\s*\\boxed\{(YES|NO)\}(?:(?!<answer>|</answer>).)*</answer>", re.S)  # one block, nothing nested in it
ANSWERS = ("YES", "NO")
LABELLED = True  # a row without a label can be answered, not rewarded
SOURCES = ("hub", "synthetic", "files")  # of raw data: prepare_data.py --source
ANSWER_PREFIX = "<answer>\\boxed{"  # what is written just before YES or NO: the probe of the no-tool baseline continues from here

# name, what to look for (goes into the prompt), and what a demonstration says at the end
QUESTIONS = {
    "wd": ("a white dwarf", "White dwarfs have broad Balmer lines: see Hβ 4861, Hγ 4340, Hα 6563.", ("The Balmer lines are broad.", "The Balmer lines are narrow.")),
    "cv": ("a cataclysmic variable", "Look for broad emission: Hα 6563, Hβ 4861, He II 4686.", ("There is broad emission.", "There is no broad emission.")),
    "cc": ("a carbon star", "C2 bands drop at 4737, 5165 and 5635 and recover to the blue.", ("The C2 bands are there.", "The C2 bands are missing.")),
    "gm": ("an M giant", "Giants have strong Ca II 8498-8662 and weak Na I 8190.", ("Ca II is strong, Na I weak.", "Ca II is weak, Na I strong.")),
    "ss": ("an S star", "S stars show ZrO at 5551, 6474 and 6932.", ("The ZrO bands are there.", "The ZrO bands are missing.")),
}
NAMES = {"wd": "white dwarfs", "cv": "cataclysmic variables", "cc": "carbon stars", "gm": "M giants", "ss": "S stars"}

SYSTEM = "You vet star candidates by their spectra. Zoom in on the lines that decide, then answer."


def question_messages(task, image, low, high):
    """The prompt of one row: the full picture (a path relative to the JSONL, or PNG bytes) and the question. low, high in Å."""
    name, guide, _ = QUESTIONS[task]
    text = (
        f"Spectrum from {low:.0f} to {high:.0f} Å. Is this object {name}? {guide} "
        "Finish with <answer>\\boxed{YES} reason</answer> or <answer>\\boxed{NO} reason</answer>."
    )
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]


def check_row(row):
    """What is wrong with a row, in one line; "" if nothing is. Asked before anything is played."""
    size = row.get("picture")
    if row.get("task") not in QUESTIONS:
        return f"task {row.get('task')!r} is none of {', '.join(QUESTIONS)}"
    if not isinstance(row["id"], str) or not isinstance(row.get("spectrum"), str):
        return "id and spectrum (the path of an npz) must be texts"
    if row.get("label") not in (*ANSWERS, None):
        return f"label {row['label']!r} must be YES, NO or null"
    if size is not None and not (isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and 32 <= side <= 4096 for side in size)):
        return f"picture {size!r} must be [width, height], 32 to 4096 pixels, or null"
    return ""


# ---------------------------------------------------------------- the environment


@dataclass
class Episode:
    """One run of the zoom loop. `step` is called off the event loop, so it may draw."""

    messages: list
    wavelength: np.ndarray  # [n] Å, observed frame
    flux: np.ndarray  # [n]
    redshift: float
    picture: tuple | None
    tools: list = field(default_factory=lambda: TOOLS)

    def step(self, action):
        if action.kind == "answer":
            return Observation(done=True)
        if action.error:  # a call that could not be read: say why and let the model try again
            return Observation(text=f"Error: {action.error}", ok=False)
        arguments = action.call.arguments
        return zoom_spectrum(self.wavelength, self.flux, self.redshift, arguments.get("wavelength_range"), arguments.get("label", ""), self.picture)


def start(row, folder):
    """The episode of a row; paths in the row are relative to `folder`."""
    data = np.load(Path(folder) / row["spectrum"])
    return Episode(row["messages"], data["wavelength"], data["flux"], float(data["redshift"]), row.get("picture"))


# ---------------------------------------------------------------- reward


def read_answer(text):
    """The lenient reading: the last \\boxed{YES|NO} after the last </think>, wherever it stands. Used when the strict one fails, by reward and evaluation alike."""
    found = re.findall(r"\\boxed\{(YES|NO)\}", text.rsplit("</think>", 1)[-1])
    return found[-1] if found else None


def predict(trajectory):
    """The answer that counts: the strict one, else the lenient one of the last turn, else None."""
    if trajectory.prediction in ANSWERS:
        return trajectory.prediction
    return read_answer(trajectory.turns[-1].text) if trajectory.turns else None


def reward(row, trajectory):
    """1.0 right and well-formed, 0.8 right, 0.0 wrong but well-formed, -0.2 neither (seed 001, section 5.2). No bonus for calling tools:
    whether a picture was worth its tokens has to show in the answer. None (abstain) if the episode failed for no fault of the model's."""
    if trajectory.finish_reason in ("error", "timeout") or row.get("label") not in ANSWERS:
        return None, {}
    parts = {"correct": float(predict(trajectory) == row["label"]), "format": 0.0 if trajectory.format_ok else -0.2}
    return sum(parts.values()), parts


def metrics(rows, trajectories):
    """Per-task precision, recall, F1 and accuracy, Macro F1, format rate, tool use; every share with its interval, beside the always-YES baseline.
    rows and trajectories run in parallel (one row per trajectory)."""
    from metrics import binary_report

    return binary_report(
        [row["label"] for row in rows],
        [predict(t) for t in trajectories],
        groups=[row["task"] for row in rows],
        format_ok=[t.format_ok for t in trajectories],
        ids=[row["id"] for row in rows],
    )


# ---------------------------------------------------------------- scripted policies


def zoom(window, label):
    return Action("tool", call=ToolCall("spectral_visualization_tool", {"wavelength_range": [int(bound) for bound in window], "label": label}))


def gold(row, folder=None):
    """A policy that must earn full reward on every labelled row: two right windows, then the label. Yields (thought, action)."""
    from tasks.spec_o3_synthetic import informative_window

    rng = np.random.default_rng([ord(letter) for letter in row["id"]])
    for _ in range(2):
        window, name = informative_window(row["task"], rng)
        yield f"Next: {name}.", zoom(window, name)
    yield closing(row["task"], row["label"])


def random_windows(row, folder, rng, calls=2):
    """The floor for looking: `calls` windows drawn anywhere in the spectrum's range. The answer is left to the model."""
    data = np.load(Path(folder) / row["spectrum"])
    rest = data["wavelength"] / (1 + float(data["redshift"]))
    for _ in range(calls):
        width = float(rng.uniform(100, 320))
        low = float(rng.uniform(rest.min(), rest.max() - width))
        yield "Next: anywhere.", zoom([low, low + width], "anywhere")


def closing(task, label):
    return "Done.", Action("answer", answer=label, text=f"<answer>\\boxed{{{label}}} {QUESTIONS[task][2][label != 'YES']}</answer>")


# ---------------------------------------------------------------- data


def _source(args):
    import importlib

    return importlib.import_module(f"tasks.spec_o3_{args.source}")  # a copy of this task keeps using them: they write below args.task


def prepare_sft(args):
    return _source(args).prepare_sft(args)


def prepare_bench(args):
    return _source(args).prepare_bench(args)


def first_picture(wavelength, flux, redshift, size):
    """The full-range picture in the rest frame: PNG bytes, and the range in Å."""
    rest = np.asarray(wavelength, float) / (1 + redshift)
    finite = rest[np.isfinite(rest) & np.isfinite(flux)]
    low, high = float(finite.min()), float(finite.max())
    return render_spectrum(rest, flux, low, high, size), low, high

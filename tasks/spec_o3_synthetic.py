"""Synthetic spectra for the spectra task: five questions, each with positives and *hard* negatives that differ in one diagnostic.

    python prepare_data.py all --task spec_o3 --source synthetic
    python tasks/spec_o3_synthetic.py --sheet sheet.png      # a contact sheet: look at what the agent will look at

| task | positive | hard negative | what tells them apart |
|---|---|---|---|
| wd | white dwarf: Balmer lines broadened by pressure (Stark) | A star: the same lines, narrow | line width |
| cv | cataclysmic variable: Balmer, He I, He II in emission | hot star in absorption, with cosmic-ray spikes | emission that is resolved |
| cc | carbon star: C2 Swan bands, sharp red edge, degraded to the blue; CN | K/M star: blends in the same places, degraded to the red | which side of a band is sharp |
| gm | M giant: strong Ca II triplet, weak Na I | M dwarf: weak triplet, strong Na I | Ca II 8498/8542/8662, Na I 8183/8195 |
| ss | S star: ZrO bands beside weakened TiO | M giant: TiO alone | ZrO 5551, 6345, 6474, 6495, 6932 |

Everything else is a nuisance drawn from the same range for both labels: temperature, reddening, a smooth calibration error,
radial velocity, feature strength, noise. Line positions are laboratory values (NIST); the band heads are those that the
classification literature uses. Depths and widths are set by hand so that the full-range picture is worth a guess and the right
window is worth an answer; they are not a model atmosphere, and nothing learned here is a claim about real stars.
"""

import argparse
import functools
import json
import shutil
from pathlib import Path

import numpy as np

SNR = 8.0, 18.0  # per pixel, median
LOW, HIGH = 3800.0, 9000.0  # Å, rest-frame range of the full picture
WAVELENGTH = 10 ** np.arange(np.log10(LOW) - 0.001, np.log10(HIGH) + 0.001, 1e-4)  # Å, the SDSS step: 69 km/s a pixel

BALMER = ((6562.8, 1.0), (4861.3, 0.9), (4340.5, 0.8), (4101.7, 0.7))  # Å, relative strength
HELIUM = ((5875.6, 0.4), (4685.7, 0.5), (6678.2, 0.25), (4471.5, 0.25))
SWAN = ((4737.0, 0.8), (5165.0, 1.0), (5635.0, 0.7))  # C2 band heads
CN = ((6920.0, 0.35), (7880.0, 0.45))
TIO = ((4761.0, 0.5), (4954.0, 0.6), (5167.0, 0.8), (5448.0, 0.5), (5847.0, 0.5), (6159.0, 0.8), (6651.0, 0.5), (7053.0, 1.0), (7589.0, 0.8), (8432.0, 0.6), (8860.0, 0.5))
ZRO = ((5551.0, 0.8), (6345.0, 0.7), (6474.0, 1.0), (6495.0, 0.6), (6932.0, 0.8))
TRIPLET = (8498.0, 8542.1, 8662.1)  # Ca II
SODIUM = (8183.3, 8194.8)

# Windows that hold the diagnostic, as (name, centre in Å, smallest width). Demonstrations and scripted baselines use them; no prompt shows them.
WINDOWS = {
    "wd": (("Hβ", 4861, 200), ("Hγ", 4340, 200), ("Hα", 6563, 200)),
    "cv": (("Hα", 6563, 160), ("Hβ", 4861, 160), ("He II", 4686, 120)),
    "cc": (("C2 5165", 5130, 200), ("C2 4737", 4710, 200), ("C2 5635", 5600, 200)),
    "gm": (("Na I", 8190, 100), ("Ca II", 8580, 240)),
    "ss": (("ZrO 6474", 6480, 160), ("ZrO 5551", 5570, 160), ("ZrO 6932", 6950, 160)),
}
KINDS = tuple(WINDOWS)


def blackbody(temperature):
    """Planck's law on WAVELENGTH, median 1. temperature in K."""
    intensity = 1 / (WAVELENGTH**5 * np.expm1(1.4388e8 / (WAVELENGTH * temperature)))
    return intensity / np.median(intensity)


def gauss(centre, sigma):
    return np.exp(-0.5 * ((WAVELENGTH - centre) / sigma) ** 2)


def lorentz(centre, half_width):
    return 1 / (1 + ((WAVELENGTH - centre) / half_width) ** 2)


def band(head, length, degraded):
    """A molecular band: full depth at the head, fading over `length` Å towards 'red' or 'blue', with the head itself resolved (3 Å)."""
    away = (WAVELENGTH - head) * (1 if degraded == "red" else -1)
    return np.exp(-np.clip(away, 0, None) / length) / (1 + np.exp(-np.clip(away / 1.5, -60, 60)))


def hot_star(rng, low, high):
    return blackbody(rng.uniform(low, high))


def undulations(rng, centres, size):
    """Smooth bumps and dips of 20-30 Å where the diagnostics are, the same for both labels: blends, telluric residues, scattered light.
    Averaged over a coarse picture's steps they look like the diagnostic; in a window of their own they don't."""
    return np.prod([1 + rng.normal(0, size) * gauss(centre + rng.normal(0, 8), rng.uniform(18, 30)) for centre in centres], axis=0)


def white_dwarf(positive, rng):
    flux = hot_star(rng, 8500, 16000)
    # Equal areas on purpose: a deep narrow line and a shallow broad one take the same bite out of a coarse picture.
    width = rng.uniform(10, 16) if positive else rng.uniform(3, 6)
    depth = np.clip(rng.uniform(2.0, 3.6) / width, 0.12, 0.75)
    for centre, strength in BALMER:
        flux = flux * (1 - depth * strength * lorentz(centre, width * rng.uniform(0.9, 1.1)))
    return flux * undulations(rng, [centre for centre, _ in BALMER], 0.06)


def cataclysmic(positive, rng):
    flux = hot_star(rng, 8000, 20000)
    height, width = rng.uniform(0.18, 0.38), rng.uniform(4, 7)
    split = rng.uniform(0.8, 1.2) * width if rng.random() < 0.4 else 0.0  # a disc seen edge-on: double peaks
    for centre, strength in BALMER + HELIUM:
        if positive:
            peaks = gauss(centre - split, width) + gauss(centre + split, width)
            flux = flux * (1 + height * strength * peaks / (1 + (split == 0)))
        else:
            flux = flux * (1 - rng.uniform(0.05, 0.25) * strength * lorentz(centre, rng.uniform(2, 4)))
    return flux * undulations(rng, [centre for centre, _ in BALMER + HELIUM], 0.15)


def carbon(positive, rng):
    flux = blackbody(rng.uniform(3000, 4400))
    depth, length = rng.uniform(0.26, 0.42), rng.uniform(24, 40)
    for head, strength in SWAN:  # the cool star's blends lie in the same places: only the sharp side differs
        flux = flux * (1 - depth * strength * (band(head, length, "blue") if positive else band(head - 1.5 * length, length, "red")))
    for head, strength in CN:
        flux = flux * (1 - 0.5 * depth * strength * (band(head, length, "red") if positive else band(head + 1.5 * length, length, "blue")))
    return flux * undulations(rng, [head - 20 for head, _ in SWAN] + [head + 20 for head, _ in CN], 0.14)


def tio_star(rng, weakened=1.0):
    flux, depth = blackbody(rng.uniform(2900, 3800)), rng.uniform(0.20, 0.45) * weakened
    for head, strength in TIO:
        flux = flux * (1 - depth * strength * band(head, rng.uniform(70, 110), "red"))
    return flux


def m_giant(positive, rng):
    flux = tio_star(rng)
    strong, weak = rng.uniform(0.34, 0.50), rng.uniform(0.05, 0.14)
    for centre in TRIPLET:
        flux = flux * (1 - (strong if positive else weak) * gauss(centre, rng.uniform(2, 3)))
    for centre in SODIUM:
        flux = flux * (1 - (weak if positive else strong) * gauss(centre, rng.uniform(2, 3)))
    return flux * undulations(rng, TRIPLET + SODIUM, 0.10)


def s_star(positive, rng):
    flux = tio_star(rng, rng.uniform(0.4, 0.9) if positive else rng.uniform(0.5, 1.0))
    for head, strength in ZRO:  # an M giant has smooth depressions there (VO, blends), an S star sharp heads
        depth = rng.uniform(0.38, 0.56) * strength
        flux = flux * (1 - depth * (band(head, rng.uniform(14, 24), "red") if positive else 0.35 * gauss(head + 12, 20)))
    return flux * undulations(rng, [head + 10 for head, _ in ZRO], 0.10)


MODELS = {"wd": white_dwarf, "cv": cataclysmic, "cc": carbon, "gm": m_giant, "ss": s_star}


def make_spectrum(kind, positive, rng, snr=None):
    """One noisy spectrum: dict with wavelength (Å, observed frame) [n], flux [n], redshift, snr (per pixel, median).

    kind: a key of WINDOWS; positive: the label; rng: numpy Generator, which alone decides everything else.
    """
    flux = MODELS[kind](positive, rng)
    position = (WAVELENGTH - LOW) / (HIGH - LOW)
    extinction = rng.uniform(0, 0.8)  # magnitudes at 5500 Å, with the 1/λ law that is good enough for a nuisance
    flux = flux * 10 ** (-0.4 * extinction * (5500 / WAVELENGTH - 1))
    flux = flux * (1 + rng.normal(0, 0.06) * np.sin(2 * np.pi * (position * rng.uniform(0.5, 2.0) + rng.random())))  # flux calibration
    snr = rng.uniform(*SNR) if snr is None else snr
    flux = flux / np.median(flux)
    flux = flux + rng.normal(0, 1, flux.size) * np.sqrt(np.clip(flux, 0.2, None)) / snr
    for _ in range(rng.poisson(5)):  # cosmic rays: one or two pixels, never resolved
        at = rng.integers(0, flux.size - 1)
        flux[at : at + rng.integers(1, 3)] += rng.uniform(0.3, 1.0)
    redshift = rng.normal(0, 2e-4)  # radial velocities of about 60 km/s
    return {"wavelength": WAVELENGTH * (1 + redshift), "flux": flux.astype(np.float32), "redshift": redshift, "snr": float(snr)}


def informative_window(kind, rng):
    """A window [low, high] (Å, multiples of 10) around one of the task's diagnostics, and its name."""
    name, centre, width = WINDOWS[kind][rng.integers(len(WINDOWS[kind]))]
    width = width + 20 * rng.integers(0, 5)
    low = int(round((centre - width / 2 + rng.uniform(-20, 20)) / 10) * 10)
    return [low, low + int(width)], name


def uninformative_window(kind, rng):
    """A window that would decide another task and holds none of this one's diagnostics: what a novice looks at who knows the lines but not their use."""
    own = [(centre, width) for _, centre, width in WINDOWS[kind]]
    while True:
        window, name = informative_window(KINDS[rng.integers(len(KINDS))], rng)
        if all(window[1] < centre - width / 2 or window[0] > centre + width / 2 for centre, width in own):
            return window, name


# ---------------------------------------------------------------- rows

INFORMATIVE_SHARE = 0.5  # of the windows in a demonstration: the rest are for RL to unlearn
THOUGHT = "Next: {}."


def demonstration(kind, positive, rng, spectrum, picture):
    """A scripted trajectory: one or two windows, good or not, then the true answer. Returns messages and their pictures (PNG bytes)."""
    from tasks.spec_o3 import closing, first_picture, question_messages
    from tools import zoom_spectrum

    first, low, high = first_picture(spectrum["wavelength"], spectrum["flux"], spectrum["redshift"], picture)
    messages, pictures = question_messages(kind, None, low, high), [first]
    for _ in range(1 + rng.integers(2)):
        window, name = (informative_window if rng.random() < INFORMATIVE_SHARE else uninformative_window)(kind, rng)
        seen = zoom_spectrum(spectrum["wavelength"], spectrum["flux"], spectrum["redshift"], window, name, picture)
        call = {"type": "function", "function": {"name": "spectral_visualization_tool", "arguments": {"wavelength_range": window, "label": name}}}
        messages.append({"role": "assistant", "content": "", "reasoning_content": THOUGHT.format(name), "tool_calls": [call]})
        messages.append({"role": "tool", "content": [{"type": "image", "image": None}, {"type": "text", "text": seen.text}]})
        pictures += seen.images
    thought, action = closing(kind, "YES" if positive else "NO")
    messages.append({"role": "assistant", "content": action.text, "reasoning_content": thought})
    return messages, pictures


def make_row(split, number, seed, folder, picture, demonstrate):
    """Write the files of one object and return its row. The object is decided by (seed, split, number) alone."""
    from tasks.spec_o3 import first_picture, question_messages

    rng = np.random.default_rng([seed, *map(ord, split), number])
    kind, positive = KINDS[number % len(KINDS)], bool(rng.integers(2))
    spectrum = make_spectrum(kind, positive, rng)
    name = f"{split}-{kind}-{number:05d}"
    row = {"id": name, "task": kind, "source_name": f"synthetic-{name}", "label": "YES" if positive else "NO", "snr": round(spectrum["snr"], 2), "picture": picture}
    if demonstrate:
        row["messages"], pictures = demonstration(kind, positive, rng, spectrum, picture)
    else:
        first, low, high = first_picture(spectrum["wavelength"], spectrum["flux"], spectrum["redshift"], picture)
        row["messages"], pictures = question_messages(kind, None, low, high), [first]
        row["spectrum"] = f"spectra/{name}.npz"
        np.savez(folder / row["spectrum"], wavelength=spectrum["wavelength"], flux=spectrum["flux"], redshift=spectrum["redshift"])
    row["images"] = []
    slots = [part for message in row["messages"] if isinstance(message["content"], list) for part in message["content"] if part["type"] == "image"]
    for slot, data in zip(slots, pictures, strict=True):
        slot["image"] = f"images/{name}-{len(row['images'])}.png"
        (folder / slot["image"]).write_bytes(data)
        row["images"].append(slot["image"])
    return row


def _job(number, split, seed, folder, picture, demonstrate):
    return make_row(split, number, seed, folder, picture, demonstrate)


def _write_splits(args, folder, sizes, demonstrate, stats_name):
    """Make every split in a folder beside the final one, then swap them: an interrupted run leaves what was there before."""
    import multiprocessing

    from tqdm import tqdm

    from protocol import write_jsonl

    settings = {"source": "synthetic", "seed": args.seed, "picture": args.picture_size, **{file: count for file, (_, count) in sizes.items()}}
    if (folder / stats_name).exists() and json.loads((folder / stats_name).read_text()).get("settings") == settings:
        print(f"{folder}: already prepared with these settings")
        return
    fresh = folder.with_name(folder.name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    for name in ("images", "spectra"):
        (fresh / name).mkdir(parents=True)
    sources, stats = {}, {"settings": settings}
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for file, (split, count) in sizes.items():
            job = functools.partial(_job, split=split, seed=args.seed, folder=fresh, picture=args.picture_size, demonstrate=demonstrate)
            rows = list(tqdm(pool.imap(job, range(count), chunksize=8), total=count, desc=file, disable=None))
            write_jsonl(fresh / f"{file}.jsonl", rows)
            sources[file] = {row["source_name"] for row in rows}
            stats[file] = {"rows": count, "positive": sum(row["label"] == "YES" for row in rows)}
    for a in sources:
        for b in sources:
            if a < b and sources[a] & sources[b]:
                raise AssertionError(f"{a} and {b} share objects")
    stats["objects_shared_between_splits"] = 0
    (fresh / stats_name).write_text(json.dumps(stats, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    print(f"{folder}: " + ", ".join(f"{file} {stats[file]['rows']} ({stats[file]['positive']} YES)" for file in sizes))


def prepare_sft(args):
    """Scripted demonstrations: sft_train.jsonl, sft_val.jsonl, sft_stats.json and their pictures."""
    held_out = max(1, round(args.sft_size * args.val_fraction))
    if held_out >= args.sft_size:
        raise SystemExit(f"--val-fraction {args.val_fraction:g} holds out all {args.sft_size} demonstrations, which leaves nothing to train on")
    sizes = {"sft_train": ("sft-train", args.sft_size - held_out), "sft_val": ("sft-val", held_out)}
    _write_splits(args, Path(args.output) / args.task / "sft", sizes, True, "sft_stats.json")


def prepare_bench(args):
    """Questions for RL, development and test: bench_rl_train.jsonl, bench_dev.jsonl, bench_test.jsonl, bench_stats.json."""
    sizes = {"bench_rl_train": ("rl", args.train_size), "bench_dev": ("dev", args.dev_size), "bench_test": ("test", args.test_size)}
    _write_splits(args, Path(args.output) / args.task / "rl", sizes, False, "bench_stats.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheet", default="sheet.png", help="where the contact sheet goes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import io
    import pathlib
    import sys

    from PIL import Image

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    from tools import render_spectrum

    rng, size = np.random.default_rng(args.seed), (224, 96)
    sheet = Image.new("RGB", (4 * size[0] + 30, 2 * len(KINDS) * size[1] + 40), "gray")
    for row, (kind, positive) in enumerate((kind, positive) for kind in KINDS for positive in (True, False)):
        spectrum = make_spectrum(kind, positive, rng)
        rest = spectrum["wavelength"] / (1 + spectrum["redshift"])
        windows = [[LOW, HIGH]] + [[c - w // 2, c + w // 2] for _, c, w in WINDOWS[kind]]
        for column, window in enumerate(windows):
            picture = render_spectrum(rest, spectrum["flux"], *window, size=size)
            sheet.paste(Image.open(io.BytesIO(picture)), (column * (size[0] + 10), row * (size[1] + 4)))
    sheet.save(args.sheet)
    print(args.sheet)

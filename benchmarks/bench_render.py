"""How fast is a zoom drawn? Ours against the usual `plt.subplots() ... savefig()`, same window, same pixels, in one run.

    python benchmarks/bench_render.py            # a table and a JSON line; about 20 s

The usual way builds figure, axes and ticks for every picture; ours keeps one figure per size and updates it (tools.render_spectrum).
Both draw the same averaged line, so that only the drawing is compared. Numbers are medians over rounds that take turns.
"""

import argparse
import io
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def naive(wavelength, flux, low, high, size):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from tools import DPI, averaged

    inside = (wavelength >= low) & (wavelength <= high)
    x, y = averaged(wavelength[inside], flux[inside], low, high, size[0] // 2)
    figure, axes = plt.subplots(figsize=(size[0] / DPI, size[1] / DPI), dpi=DPI)
    axes.plot(x, y, linewidth=1)
    axes.set_xlabel("Rest-frame wavelength (Å)")
    axes.set_ylabel("Flux")
    axes.grid(alpha=0.3)
    axes.minorticks_on()
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    plt.close(figure)
    return buffer.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=10, help="a round and way")
    args = parser.parse_args()
    from tasks.spec_o3_synthetic import informative_window, make_spectrum
    from tools import render_spectrum

    rng = np.random.default_rng(0)
    spectra = [make_spectrum("wd", True, rng) for _ in range(args.pictures)]
    windows = [informative_window("wd", rng)[0] for _ in spectra]
    print(f"{'size':>12} {'usual ms':>9} {'ours ms':>9} {'ratio':>7}")
    results = {}
    for size in ((224, 96), (640, 400)):
        seconds = {"usual": [], "ours": []}
        for _ in range(args.rounds + 1):  # the first round warms both up
            for name, draw in (("usual", naive), ("ours", render_spectrum)):
                begun = time.perf_counter()
                for spectrum, window in zip(spectra, windows):
                    draw(spectrum["wavelength"], spectrum["flux"], *window, size=size)
                seconds[name].append((time.perf_counter() - begun) / args.pictures)
        usual, ours = (np.array(seconds[name][1:]) * 1e3 for name in ("usual", "ours"))
        ratio = usual / ours  # round by round, so that a machine that slows down slows both
        results["x".join(map(str, size))] = {"usual_ms": float(np.median(usual)), "ours_ms": float(np.median(ours)), "ratio": float(np.median(ratio)), "ratio_min": float(ratio.min())}
        print(f"{size[0]}x{size[1]:<8} {np.median(usual):9.1f} {np.median(ours):9.1f} {np.median(ratio):6.1f}x  (min {ratio.min():.1f}, max {ratio.max():.1f}, n {args.rounds})")
    print(json.dumps({"benchmark": "render", "pictures": args.pictures, "rounds": args.rounds, **results}))


if __name__ == "__main__":
    main()

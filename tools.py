"""What an agent may call. One function per tool, each with its JSON schema beside it.

    python tools.py spectrum.npz 6400 6700 halpha.png     # draw what the model would see

`zoom_spectrum` is the tool of the spectra agent: it redraws a wavelength window of the spectrum at hand, so that the
model's next look depends on its last thought (Spec-o3, section 3; seed 001, section 3.3).

A tool never raises for what the model asked: a bad request becomes an observation that says what is wrong, and the
episode goes on. It raises only when the tool itself is broken, which ends the episode as `error` and is never scored.
"""

import io
import sys
import threading

import numpy as np

from protocol import Observation

ZOOM_TOOL = {
    "type": "function",
    "function": {
        "name": "spectral_visualization_tool",
        "description": "Redraw the spectrum between two wavelengths.",
        "parameters": {
            "type": "object",
            "properties": {
                "wavelength_range": {"type": "array", "items": {"type": "number"}, "description": "[minimum, maximum] in Angstrom, rest frame"},
                "label": {"type": "string", "description": "what the window shows"},
            },
            "required": ["wavelength_range"],
        },
    },
}

DPI = 80
SMALL = 200  # pixels of height below which a picture has no flux axis: a number takes as much room as a spectral line
MAX_LABEL = 60  # characters of the model's label that are repeated back to it

# Matplotlib's font objects are not safe to share between threads, and drawing holds the interpreter lock anyway: one lock,
# and one figure per size that is updated instead of built (building is 9/10 of the naive cost, see benchmarks/bench_render.py).
_drawing = threading.Lock()
_figures = {}


def picture_size(low, high):
    """Width and height in pixels by the *requested* width of the window, for pictures without a fixed size (facts of seed 001, 3.3)."""
    for limit, inches in ((50, (6, 4)), (200, (7, 4.5)), (1000, (8, 5))):
        if high - low < limit:
            return int(inches[0] * DPI), int(inches[1] * DPI)
    return int(9 * DPI), int(5.5 * DPI)


def tick_step(width):
    """The 1-2-5 step that puts three to seven ticks into `width`."""
    power = 10 ** np.floor(np.log10(width / 3))
    return next(power * factor for factor in (5, 2, 1) if width / (power * factor) >= 3)


def averaged(x, y, low, high, count):
    """At most `count` points: means over equal steps of [low, high] where there are more. A line through more points than
    pixels draws the noise's extremes as a black band, and what is narrow drowns in it."""
    if len(x) <= count:
        return x, y
    step = np.minimum(((x - low) / (high - low) * count).astype(int), count - 1)
    points = np.maximum(np.bincount(step, minlength=count), 1)
    keep = np.bincount(step, minlength=count) > 0
    return (np.bincount(step, x, count) / points)[keep], (np.bincount(step, y, count) / points)[keep]


def _figure(size):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    width, height = size
    small = height < SMALL
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="none")
    FigureCanvasAgg(figure)
    left, bottom = (4, 15) if small else (60, 48)  # pixels
    axes = figure.add_axes([left / width, bottom / height, 1 - (left + (4 if small else 14)) / width, 1 - (bottom + (3 if small else 14)) / height])
    (line,) = axes.plot([0, 1], [0, 1], color="black", linewidth=1.0, antialiased=True)
    axes.tick_params(axis="x", labelsize=7 if small else 10, length=2 if small else 4, pad=1 if small else 3, direction="in")
    if small:
        axes.set_yticks([])
    else:
        axes.grid(alpha=0.3)
        axes.set_xlabel("Rest-frame wavelength (Å)")
        axes.set_ylabel("Flux")
        axes.yaxis.set_major_locator(MaxNLocator(3))  # every number drawn costs as much as the curve
    return figure, axes, line


def render_spectrum(wavelength, flux, low, high, size=None):
    """Draw the window [low, high] (Å) of a spectrum as a line plot; returns PNG bytes (grey).

    wavelength, flux: float arrays [n], same frame as `low`, `high`; non-finite points are left out, order does not matter.
    size: (width, height) in pixels, or None for a size by window width. At most one point for two pixels is drawn: a wide window
    shows means, so that narrow features need a narrow window. Axes follow the window, and the flux axis follows the 0.2-99.8
    percentiles of what is inside it, so that one bad pixel doesn't flatten the rest.
    Raises ValueError if fewer than two finite points lie inside.
    """
    from PIL import Image

    inside = (wavelength >= low) & (wavelength <= high) & np.isfinite(flux)
    if inside.sum() < 2:
        raise ValueError(f"fewer than two points between {low:g} and {high:g} Å")
    x, y = np.asarray(wavelength, float)[inside], np.asarray(flux, float)[inside]
    order = np.argsort(x, kind="stable")
    size = tuple(size) if size else picture_size(low, high)
    x, y = averaged(x[order], y[order], low, high, size[0] // 2)
    bottom, top = np.percentile(y, [0.2, 99.8])
    pad = 0.06 * (top - bottom) or 0.5 * abs(top) or 1.0  # a constant flux still gets an axis
    with _drawing:
        if size not in _figures:
            _figures[size] = _figure(size)
        figure, axes, line = _figures[size]
        line.set_data(x, y)
        axes.set_xlim(low, high)
        axes.set_ylim(bottom - pad, top + pad)
        step = tick_step(high - low)
        margin = (high - low) * 14 / size[0] if size[1] < SMALL else 0  # half a number: at the very edge it would be cut off
        ticks = np.arange(np.ceil((low + margin) / step), np.floor((high - margin) / step) + 1) * step
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        figure.canvas.draw()
        pixels = np.asarray(figure.canvas.buffer_rgba())[..., 0].copy()  # [height, width] uint8: everything is black, white or grey
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def zoom_spectrum(wavelength, flux, redshift, wavelength_range, label="", size=None):
    """The zoom tool: rest frame = observed / (1 + redshift), keep the closed window, draw it.

    wavelength (Å, observed frame), flux: float arrays [n]. Returns an Observation with the picture and one line of text, or a
    line that starts with "Error:" and no picture when the window is reversed, empty, not finite or outside the coverage.
    """
    try:
        low, high = (float(bound) for bound in wavelength_range)
    except (TypeError, ValueError):
        return Observation(text="Error: wavelength_range must be [minimum, maximum], two numbers in Angstrom.", ok=False)
    if not (np.isfinite(low) and np.isfinite(high)):
        return Observation(text="Error: wavelength_range must hold two finite numbers.", ok=False)
    if low >= high:
        return Observation(text=f"Error: the window [{low:g}, {high:g}] is empty: the minimum must be below the maximum.", ok=False)
    rest = np.asarray(wavelength, float) / (1 + redshift)
    flux = np.asarray(flux, float)
    finite = np.isfinite(rest) & np.isfinite(flux)
    first, last = rest[finite].min(), rest[finite].max()
    if np.count_nonzero(finite & (rest >= low) & (rest <= high)) < 2:
        return Observation(text=f"Error: no data between {low:g} and {high:g} Å; the spectrum covers {first:.0f} to {last:.0f} Å.", ok=False)
    picture = render_spectrum(rest, flux, low, high, size)
    label = " ".join(str(label or "").split())[:MAX_LABEL]
    return Observation(text=f"Redrawn from {low:g} to {high:g} Å" + (f" ({label})." if label else "."), images=[picture])


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python tools.py SPECTRUM.npz LOW HIGH OUT.png")
    data = np.load(sys.argv[1])
    seen = zoom_spectrum(data["wavelength"], data["flux"], float(data["redshift"]) if "redshift" in data else 0.0, [float(sys.argv[2]), float(sys.argv[3])])
    print(seen.text)
    if seen.images:
        with open(sys.argv[4], "wb") as file:
            file.write(seen.images[0])

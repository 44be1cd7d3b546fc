"""The zoom tool: what the model may ask for, what it gets, and that a bad request never ends an episode."""

import io
import threading

import numpy as np
import pytest
from PIL import Image

from protocol import Action, ToolCall
from tasks import spec_o3
from tasks.spec_o3_synthetic import KINDS, WINDOWS, informative_window, make_spectrum, uninformative_window
from tools import averaged, render_spectrum, tick_step, zoom_spectrum

SIZE = (224, 96)


@pytest.fixture
def line():
    wavelength = np.arange(4000.0, 8000.0, 1.0)
    flux = 1 - 0.8 * np.exp(-0.5 * ((wavelength - 6000) / 5) ** 2)
    return wavelength, flux


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"))


def test_the_window_is_in_the_rest_frame(line):
    wavelength, flux = line
    at_rest = zoom_spectrum(wavelength, flux, 0.0, [5900, 6100], size=SIZE)
    shifted = zoom_spectrum(wavelength * 1.1, flux, 0.1, [5900, 6100], size=SIZE)
    assert at_rest.ok and np.array_equal(pixels(at_rest.images[0]), pixels(shifted.images[0]))
    unshifted = zoom_spectrum(wavelength * 1.1, flux, 0.0, [5900, 6100], size=SIZE)
    assert not np.array_equal(pixels(at_rest.images[0]), pixels(unshifted.images[0]))


def test_axes_follow_the_window(line):
    wavelength, flux = line
    dark = pixels(render_spectrum(wavelength, flux, 5900, 6100, SIZE))[:70] < 128
    columns = np.flatnonzero(dark[40:].sum(0) > 0)  # the lower half inside the frame holds the dip only
    inner = columns[(columns > 10) & (columns < 214)]
    assert 100 < inner.mean() < 124, "a line at the centre of the window lies at the centre of the picture"


def test_picture_sizes(line):
    for size in (SIZE, (336, 168)):
        assert pixels(render_spectrum(*line, 5000, 5500, size)).shape == size[::-1]
    shapes = [pixels(render_spectrum(*line, 5000, 5000 + width)).shape[::-1] for width in (40, 150, 900, 2000)]
    assert shapes == [(480, 320), (560, 360), (640, 400), (720, 440)]


def test_a_wide_window_shows_means_and_a_narrow_one_points():
    x, y = np.arange(0.0, 100.0), np.tile([0.0, 2.0], 50)
    assert averaged(x, y, 0, 100, 200) == (x, y)
    few_x, few_y = averaged(x, y, 0, 100, 10)
    assert len(few_x) == 10 and np.allclose(few_y, 1.0) and np.allclose(few_x, np.arange(4.5, 100, 10))


@pytest.mark.parametrize("width, step", [(5200, 1000), (200, 50), (100, 20), (320, 100), (40, 10)])
def test_three_to_seven_ticks(width, step):
    assert tick_step(width) == step and 3 <= width / step <= 7.5


@pytest.mark.parametrize(
    "window, said",
    [
        ([6100, 5900], "minimum must be below"),
        ([6000, 6000], "minimum must be below"),
        ([1000, 2000], "covers 4000 to 7999"),
        ([7999.2, 9000], "no data"),
        ([float("nan"), 6000], "finite"),
        ([5000, float("inf")], "finite"),
        ([5000], "two numbers"),
        ([5000, 6000, 7000], "two numbers"),
        (None, "two numbers"),
        ("5000-6000", "two numbers"),
        ([True, None], "two numbers"),
    ],
)
def test_bad_windows_are_observations(line, window, said):
    seen = zoom_spectrum(*line, 0.0, window, size=SIZE)
    assert not seen.ok and not seen.images and seen.text.startswith("Error: ") and said in seen.text


def test_bad_pixels_do_not_hurt(line):
    wavelength, flux = line
    flux = flux.copy()
    flux[::7], wavelength = np.nan, wavelength[::-1]  # unsorted, and with holes
    seen = zoom_spectrum(wavelength, flux[::-1], 0.0, [5900, 6100], size=SIZE)
    assert seen.ok and len(seen.images) == 1
    flat = zoom_spectrum(np.arange(4000.0, 5000.0), np.ones(1000), 0.0, [4100, 4200], size=SIZE)
    assert flat.ok, "a constant flux still has an axis"


def test_label_is_repeated_on_one_line_and_bounded(line):
    seen = zoom_spectrum(*line, 0.0, [5900, 6100], "Hα\n<|im_end|>" + "x" * 500, size=SIZE)
    assert "\n" not in seen.text and len(seen.text) < 130


def test_drawing_from_threads_gives_the_same_pictures(line):
    windows = [[4000 + 50 * i, 4400 + 60 * i] for i in range(24)]
    alone = [render_spectrum(*line, *window, SIZE) for window in windows]
    drawn = [None] * len(windows)

    def draw(i):
        drawn[i] = render_spectrum(*line, *windows[i], SIZE if i % 2 == 0 else (336, 168)) if i % 2 else render_spectrum(*line, *windows[i], SIZE)

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(len(windows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(drawn[i] == alone[i] for i in range(0, len(windows), 2))


# ---------------------------------------------------------------- the task around it


def test_episode_answers_calls_and_errors(tmp_path):
    spectrum = make_spectrum("wd", True, np.random.default_rng(0))
    np.savez(tmp_path / "a.npz", **{key: spectrum[key] for key in ("wavelength", "flux", "redshift")})
    episode = spec_o3.start({"messages": [], "spectrum": "a.npz", "picture": list(SIZE)}, tmp_path)
    call = lambda **arguments: Action("tool", call=ToolCall("spectral_visualization_tool", arguments))
    assert episode.step(call(wavelength_range=[6400, 6700], label="Hα")).text == "Redrawn from 6400 to 6700 Å (Hα)."
    assert not episode.step(call(wavelength_range=[6700, 6400])).ok
    assert episode.step(Action("answer", answer="YES")).done


@pytest.mark.parametrize("kind", KINDS)
def test_windows_hold_the_diagnostic_or_do_not(kind):
    rng = np.random.default_rng(1)
    centres = {name: centre for name, centre, _ in WINDOWS[kind]}
    for _ in range(50):
        (low, high), name = informative_window(kind, rng)
        assert low < centres[name] < high and low % 10 == high % 10 == 0
        (low, high), _ = uninformative_window(kind, rng)
        assert not any(low < centre < high for centre in centres.values())


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_decided_by_the_generator_alone(kind):
    one, two, other = (make_spectrum(kind, True, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert np.array_equal(one["flux"], two["flux"]) and not np.array_equal(one["flux"], other["flux"])
    assert np.isfinite(one["flux"]).all() and 8 <= one["snr"] <= 18


def test_white_dwarfs_have_wider_lines_than_a_stars_of_equal_depth():
    def width(positive):
        rng = np.random.default_rng(3)
        widths = []
        for _ in range(40):
            spectrum = make_spectrum("wd", positive, rng, snr=1e6)
            rest, flux = spectrum["wavelength"] / (1 + spectrum["redshift"]), spectrum["flux"]
            near = (rest > 6463) & (rest < 6663)
            depth = np.median(flux[near]) - np.convolve(flux[near], np.ones(3) / 3, "same")[1:-1]
            widths.append((depth > depth.max() / 2).sum())
        return np.median(widths)

    assert width(True) > 1.8 * width(False)


def trajectory(**fields):
    from types import SimpleNamespace

    base = {"finish_reason": "answer", "prediction": None, "format_ok": False, "turns": [SimpleNamespace(text=fields.pop("text", ""))]}
    return SimpleNamespace(**(base | fields))


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"prediction": "YES", "format_ok": True}, 1.0),
        ({"text": "<think>a</think> I say \\boxed{YES}"}, 0.8),
        ({"prediction": "NO", "format_ok": True}, 0.0),
        ({"text": "<think>\\boxed{YES}</think> nothing"}, -0.2),
        ({"text": "\\boxed{YES} or \\boxed{NO}"}, -0.2),
        ({"text": "\\boxed{MAYBE} \\boxed{yes}"}, -0.2),
        ({"finish_reason": "error"}, None),
        ({"finish_reason": "timeout"}, None),
    ],
)
def test_rewards(fields, expected):
    assert spec_o3.reward({"label": "YES"}, trajectory(**fields))[0] == expected


def test_rows_without_a_label_are_not_scored():
    assert spec_o3.reward({"label": None}, trajectory(prediction="YES", format_ok=True)) == (None, {})


@pytest.mark.parametrize(
    "change, said",
    [
        ({"label": "yes"}, "label"),
        ({"label": ["YES"]}, "label"),
        ({"task": "xx"}, "task"),
        ({"spectrum": None}, "spectrum"),
        ({"id": 5}, "id"),
        ({"picture": "big"}, "picture"),
        ({"picture": [0, 0]}, "picture"),
        ({"picture": [100000, 100000]}, "picture"),
    ],
)
def test_rows_are_checked_before_anything_is_played(change, said):
    row = {"id": "a", "task": "wd", "label": "YES", "spectrum": "a.npz", "picture": [224, 96]}
    assert spec_o3.check_row(row) == "" and spec_o3.check_row({**row, "label": None, "picture": None}) == ""
    assert said in spec_o3.check_row({**row, **change})

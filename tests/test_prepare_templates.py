"""tasks/spec_o3_templates.py on small files with the layouts of redrock and SDSS, and on the real ones where they are at hand."""

from pathlib import Path

import numpy as np
import pytest
from astropy.io import fits
from spectra_fixtures import run_files as run
from spectra_fixtures import write_lamost_image, write_sdss

from tasks import spec_o3_templates
from tasks.spec_o3_templates import GRID, TEMPLATE_LABELS, draw_templates, observe, read_templates, rebin

TEMPLATES = Path(__file__).resolve().parents[2] / "shared" / "spectra"


def write_templates(folder):
    """Small files with the layouts of redrock and SDSS: smooth spectra, one class each."""
    folder.mkdir(parents=True, exist_ok=True)
    rest = 3000 + 0.5 * np.arange(16001)
    basis = np.array([1 - 0.6 * np.exp(-(((rest - 4861) / 20) ** 2)), rest / 6000])
    stars = np.c_[np.ones(30), np.linspace(0.1, 0.9, 30)]
    stars[3] = (1, -5)  # not physical: below zero over half the range
    for kind in ("WD", "A", "CV"):
        head = fits.PrimaryHDU(basis)
        head.header.update({"EXTNAME": "BASIS_VECTORS", "CRVAL1": 3000.0, "CDELT1": 0.5, "RRTYPE": "STAR", "RRSUBTYP": kind})
        more = [] if kind == "CV" else [fits.ImageHDU(stars, name="ARCHETYPE_COEFF")]
        fits.HDUList([head, *more]).writeto(folder / f"rrtemplate-STAR-{kind}.fits")
    pixels = 3892
    named = fits.PrimaryHDU(np.array([np.linspace(1, 2, pixels), np.linspace(2, 1, pixels), np.ones(pixels)], "f4"))
    named.header.update({"COEFF0": 3.578, "COEFF1": 1e-4, "NAME0": "Carbon", "NAME1": "M4", "NAME2": "T2"})
    named.writeto(folder / "spEigenStar.fits")
    return folder


def test_read_templates(tmp_path):
    folder = write_templates(tmp_path / "t")
    white = read_templates(folder / "rrtemplate-STAR-WD.fits")
    assert white["names"].count("STAR-WD") == 29 and white["names"][3] == "STAR-WD-HE"  # the odd one has no Hβ
    assert white["basis"].shape == (2, 16001) and white["stars"].shape == (30, 2)
    assert white["wavelength"][[0, -1]].tolist() == [3000, 11000]
    assert read_templates(folder / "rrtemplate-STAR-CV.fits")["stars"] is None
    named = read_templates(folder / "spEigenStar.fits")
    assert named["names"] == ["Carbon", "M4", "T2"] and named["wavelength"][1] == pytest.approx(10**3.5781)
    write_sdss(tmp_path / "spec.fits")
    write_lamost_image(tmp_path / "lamost.fits")
    assert read_templates(tmp_path / "spec.fits") is None and read_templates(tmp_path / "lamost.fits") is None


def test_rebin_keeps_the_mean_and_knows_its_coverage():
    wavelength = np.linspace(4000, 5000, 10001)
    edges = np.array([3990, 4000, 4100.0, 4250, 5000, 5010])
    assert rebin(wavelength, wavelength, edges)[1:4] == pytest.approx([4050, 4175, 4625], rel=1e-6)
    assert np.isnan(rebin(wavelength, wavelength, edges)[[0, 4]]).all()
    flux = np.where(wavelength < 4100, 0.0, 3.0)  # zeros at the ends are no data
    assert np.isnan(rebin(wavelength, flux, edges)[1]) and rebin(wavelength, flux, edges)[2] == pytest.approx(3)
    assert np.isnan(rebin(wavelength, np.zeros(10001), edges)).all()


@pytest.mark.parametrize("snr", [5.0, 40.0])
def test_the_noise_of_a_template_is_the_noise_asked_for(snr):
    wavelength = 3000 + 0.5 * np.arange(16001)
    flux, ivar, redshift = observe(wavelength, np.full(16001, 7.0), snr, np.random.default_rng(0), smooth=True, below_zero=0.01)
    inside = np.isfinite(flux)
    assert np.std(flux[inside]) == pytest.approx(1 / snr, rel=0.05) and np.median(flux[inside]) == pytest.approx(1, abs=0.01)
    assert ivar[100] == pytest.approx(snr**2, rel=1e-3) and 0 < abs(redshift) < 0.001
    assert observe(wavelength, np.linspace(-1, 2, 16001), snr, np.random.default_rng(0), True, 0.01) is None


def test_a_line_of_a_template_moves_with_its_redshift():
    wavelength = 3000 + 0.1 * np.arange(80001)
    flux = 1 - 0.8 * np.exp(-0.5 * ((wavelength - 6563) / 4) ** 2)
    for seed in range(5):
        seen, _, redshift = observe(wavelength, flux, 1e4, np.random.default_rng(seed), smooth=True, below_zero=0.01)
        near = (GRID > 6500) & (GRID < 6630)
        centre = np.average(GRID[near], weights=np.clip(1 - seen[near], 0, None))
        assert centre / (1 + redshift) == pytest.approx(6563, abs=0.15)  # 7 km/s; the shifts are about 60 km/s


def test_templates_become_marked_and_seeded_rows(tmp_path):
    folder = write_templates(tmp_path / "t")
    flags = ("--template-count", 4, "--template-noise", 25, "--val-fraction", 0.3)
    out, parts, stats = run(tmp_path, folder, *flags)
    rows = [row for part in parts.values() for row in part]
    assert all(row["semi_synthetic"] is True and row["snr"] == 25 for row in rows) and stats["semi_synthetic"] == len(rows)
    assert {(row["template"], row["task"], row["label"]) for row in rows} == {
        ("STAR-WD", "wd", "YES"), ("STAR-WD", "cv", "NO"), ("STAR-A", "wd", "NO"), ("STAR-A", "cv", "NO"), ("STAR-CV", "cv", "YES"),
        ("Carbon", "cc", "YES"), ("M4", "cc", "NO"), ("M4", "gm", "NO"),
    }  # fmt: skip
    assert len({row["spectrum"] for row in rows}) == 5 * 4
    stars = {row["source_name"] for row in rows if row["template"] == "STAR-WD"}
    assert len(stars) == 4 and "template-STAR-WD-00003" not in stars  # four different stars, and never the impossible one
    assert {row["source_name"] for row in rows if row["template"] == "Carbon"} == {"template-Carbon"}
    places = [{row["source_name"] for row in part} for part in parts.values()]
    assert not places[0] & places[1] and not places[1] & places[2] and not places[0] & places[2]
    with np.load(out / rows[0]["spectrum"]) as data:
        assert abs(float(data["redshift"])) < 0.001 and np.isfinite(data["flux"]).all() and "ivar" in data
    again = run(tmp_path, folder, *flags)[1]
    other = run(tmp_path, folder, *flags, "--seed", 3)[1]
    assert again == parts and other != parts
    only = run(tmp_path, folder, "--template-count", 2, "--target", "cv")[1]
    assert {row["task"] for part in only.values() for row in part} == {"cv"}


def test_P50_more_templates_than_there_are(tmp_path, capsys):
    folder = write_templates(tmp_path / "t")
    template = read_templates(folder / "rrtemplate-STAR-WD.fits")
    drawn = list(draw_templates(template, 100, 10, np.random.default_rng(0)))
    assert len(drawn) == 29 == len({spectrum["name"] for _, spectrum in drawn})
    told = capsys.readouterr().out
    assert "STAR-WD has 29 usable stars, fewer than the 100 asked for" in told and "STAR-WD-HE has 0 usable" in told


def test_real_templates_read_as_what_they_are(tmp_path):
    """Skipped where the files are not there. Every class has its labels, and the shapes are those of the classes."""
    if not TEMPLATES.is_dir():
        pytest.skip("no star templates beside the project")
    assert not {name for name in TEMPLATE_LABELS if not name.startswith("STAR-")} - set(
        read_templates(TEMPLATES / "spEigenStar-53724.fits")["names"]
    )
    assert read_templates(TEMPLATES / "spEigenCVstar-53724.fits")["names"] == ["STAR-CV"]
    out, parts, stats = run(tmp_path, TEMPLATES, "--template-count", 2, "--template-noise", 200, "--val-fraction", 0.2)
    rows = [row for part in parts.values() for row in part]
    assert {row["template"] for row in rows} == set(TEMPLATE_LABELS) and stats["source_overlap"] == 0

    def depths(file, kind, *bands):
        """For 12 stars of a class and bands (line, from, to, continuum), all in Å: how far the flux lies below the continuum; [12, bands]."""
        found = []
        for name, spectrum in draw_templates(read_templates(TEMPLATES / file), 12, 200, np.random.default_rng(1)):
            rest, flux = spectrum["wavelength"] / (1 + spectrum["redshift"]), spectrum["flux"]
            far = [np.abs(rest - line) for line, *_ in bands]
            near = [
                np.nanmean(flux[(d >= low) & (d < high)]) / np.nanmean(flux[(d > side) & (d < side + 40)])
                for d, (_, low, high, side) in zip(far, bands, strict=True)
            ]
            found += [1 - np.array(near)] if name == kind else []
        return np.array(found)

    core, wing = (4861, 0, 4, 120), (4861, 15, 35, 120)  # Hβ: pressure makes a white dwarf's wings deep beside its core
    white, a_star = (depths(f"rrtemplate-{kind}-v0.1.fits", kind, core, wing) for kind in ("STAR-WD", "STAR-A"))
    assert white[:, 0].min() > 0.05 and (white[:, 1] / white[:, 0]).min() > 1.5 * (a_star[:, 1] / a_star[:, 0]).max()
    helium = depths("rrtemplate-STAR-WD-v0.1.fits", "STAR-WD-HE", core, (5876, 0, 6, 80))
    assert helium[:, 0].max() < 0.1 and helium[:, 1].min() > 0.05
    assert depths("rrtemplate-STAR-CV-v0.1.fits", "STAR-CV", (6563, 0, 8, 60)).max() < -0.2  # Hα in emission
    assert depths("spEigenStar-53724.fits", "Carbon", (5130, 0, 30, 60)).min() > 0.2  # the C2 band below 5165
    sodium = {kind: depths("spEigenStar-53724.fits", kind, (8190, 0, 12, 20)).mean() for kind in ("K5", "M3", "M5")}
    assert sodium["M5"] > sodium["M3"] > 1.5 * sodium["K5"] > 0  # Na I of dwarfs


def test_template_table_covers_only_known_tasks():
    pairs = {pair for labels in TEMPLATE_LABELS.values() for pair in labels}
    assert {task for task, _ in pairs} == {"wd", "cv", "cc", "gm"} and {label for _, label in pairs} == {"YES", "NO"}
    assert ("gm", "YES") not in pairs and all(f"| {task} |" in spec_o3_templates.__doc__ for task in ("wd", "cv", "cc", "gm", "ss"))

"""tasks/spec_o3_files.py and spec_o3_readers.py: survey layouts, labels.csv, vetting. Small files made here; no network."""

import io
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from astropy.io import fits
from PIL import Image
from spectra_fixtures import (
    LOGLAM,
    WAVELENGTH,
    arguments,
    flux_of,
    labels_csv,
    many,
    write_csv,
    write_desi,
    write_every_layout,
    write_sdss,
)
from spectra_fixtures import files_refused as refused
from spectra_fixtures import run_files as run

from protocol import read_jsonl
from tasks import spec_o3_files
from tasks.spec_o3_readers import check_spectrum, join_arms, read_spectra

# ---------------------------------------------------------------- layouts


def test_every_layout_is_recognised_by_content(tmp_path):
    folder = write_every_layout(tmp_path / "spectra")
    found = {path.name: read_spectra(path) for path in folder.rglob("*") if path.is_file() and not path.name.startswith("redrock")}
    sdss, old, new, arms, csv, npz = (
        found[name][0] for name in ("spec-1.fits", "old.fits.gz", "new.fits", "arms.fits", "mine.csv", "ours.npz")
    )
    assert [entry["layout"] for entry in (sdss, old, new, arms, csv, npz)] == ["sdss", "lamost-image", "lamost", "lamost", "csv", "npz"]
    assert np.allclose(sdss["wavelength"], 10**LOGLAM, rtol=1e-6) and sdss["redshift"] == pytest.approx(0.0004) and sdss["ivar"][7] == 0
    for entry in (old, new, csv, npz):
        assert np.allclose(entry["wavelength"], WAVELENGTH, rtol=1e-6) and np.allclose(entry["flux"], flux_of(), rtol=1e-6)
        assert entry["wavelength"].dtype == np.float64 and entry["wavelength"].dtype.isnative
    assert (old["redshift"], csv["redshift"], npz["redshift"]) == (-9999, 0.002, -0.001) and new["redshift"] == pytest.approx(0.00012)
    assert len(arms["wavelength"]) == 400 and arms["flux"][0] == 1 and arms["flux"][-1] == 3
    assert arms["flux"][210] == pytest.approx((1 * 1 + 3 * 3) / 4) and arms["ivar"][210] == pytest.approx(4)  # the overlap, weighted

    desi = found["coadd-main-dark-1.fits"]
    assert [entry["name"] for entry in desi] == ["39001", "39002", "39004"]  # the sky fibre is left out
    assert [entry["redshift"] for entry in desi] == pytest.approx([1e-4, 2e-4, 4e-4])
    assert np.allclose(desi[0]["wavelength"], WAVELENGTH) and np.all(np.diff(desi[0]["wavelength"]) > 0)
    clean, dropped = check_spectrum(desi[1], "x")
    assert dropped == 5 and np.isfinite(clean["flux"]).all()  # masked in B alone; what R and Z mask, the other arm of the overlap has


def test_arms_average_only_good_pixels():
    wavelength = np.array([1.0, 2.0, 3.0])
    joined = join_arms([(wavelength, [1, np.nan, 5], [1, 1, 0]), (wavelength + 1, [7, 9, 11], [3, 0, 2])])
    assert joined[0].tolist() == [1, 2, 3, 4]
    assert joined[1][:2].tolist() == [1, 7] and np.isnan(joined[1][2]) and joined[1][3] == 11
    assert joined[2].tolist() == [1, 3, 0, 2]


def test_an_unknown_layout_says_what_was_found_and_what_is_expected(tmp_path):
    table = fits.BinTableHDU.from_columns(
        [fits.Column("lambda_um", "E", array=[1.0]), fits.Column("counts", "E", array=[1.0])], name="SPECTRUM"
    )
    fits.HDUList([fits.PrimaryHDU(np.zeros((2, 5), "f4")), table]).writeto(tmp_path / "odd.fits")
    message = refused(tmp_path, tmp_path / "odd.fits", "--target", "wd")
    assert "odd.fits" in message and "SPECTRUM (lambda_um, counts)" in message and "PRIMARY (2x5)" in message
    assert "COADD with loglam" in message and "B_WAVELENGTH" in message


def broken_csv(change):
    wavelength, flux = WAVELENGTH.copy(), flux_of()
    change(wavelength, flux)
    return wavelength, flux


BROKEN = {
    "unsorted": (lambda w, f: w.__setitem__(9, 100), r"wavelength\[9\] = 100 follows"),
    "repeated": (lambda w, f: w.__setitem__(9, w[8]), r"wavelength\[9\] = .* follows"),
    "nan wavelength": (lambda w, f: w.__setitem__(11, np.nan), r"wavelength\[11\] is nan"),
    "infinite wavelength": (lambda w, f: w.__setitem__(399, np.inf), r"wavelength\[399\] is inf"),
    "nanometres": (lambda w, f: w.__itruediv__(10), r"run from 380 to 900; expected Å"),
    "log10": (lambda w, f: w.__setitem__(slice(None), np.log10(w)), r"expected Å"),
    "all NaN": (lambda w, f: f.fill(np.nan), r"no flux is a finite number"),
    "enormous flux": (lambda w, f: f.__setitem__(3, 1e308), r"flux of 1e\+308: beyond 1e\+30"),
    "few pixels": (lambda w, f: f.__setitem__(slice(9, None), np.nan), r"9 usable pixels.*at least 10"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_spectrum_that_cannot_be_right_is_named(tmp_path, case):
    change, pattern = BROKEN[case]
    wavelength, flux = broken_csv(change)
    write_csv(tmp_path / "s" / "good.csv")
    write_csv(tmp_path / "s" / "z.csv", wavelength=wavelength, flux=flux)
    message = refused(tmp_path, tmp_path / "s", "--target", "wd")
    assert re.search(pattern, message) and "z.csv" in message, message
    out, parts, stats = run(tmp_path, tmp_path / "s", "--target", "wd", "--skip-bad")
    assert [row["source_name"] for row in parts["dev"]] == ["good.csv"] and len(stats["skipped"]) == 1 and "z.csv" in stats["skipped"][0]


@pytest.mark.parametrize(
    "text, pattern",
    [
        ("wavelength,counts\n5000,1\n", r"expected columns wavelength, flux .*; found wavelength, counts"),
        ("5000,1\n5001,1\n", r"expected columns .*; found 5000, 1"),
        ("", r"expected columns .*; found none"),
        ("wavelength,flux\n5000,1\n5001,abc\n", r"line 3: flux is 'abc', not a number"),
        ("wavelength,flux\n5000,1\n5001\n", r"line 3: 1 cells under 2 columns"),
        ("wavelength,flux\n", r"0 usable pixels"),
        ("wavelength,flux,z\n5000,1,0.1\n5001,1,0.2\n", r"redshift column holds 2 values"),
    ],
)
def test_csv_mistakes_name_file_and_line(tmp_path, text, pattern):
    (tmp_path / "a.csv").write_text(text)
    message = refused(tmp_path, tmp_path / "a.csv", "--target", "wd")
    assert re.search(pattern, message) and "a.csv" in message, message


def test_csv_tolerates_what_spreadsheets_write(tmp_path):
    rows = "".join(f"{w},{f}\r\n" for w, f in zip(WAVELENGTH, flux_of(), strict=True))
    (tmp_path / "a.csv").write_bytes(
        "\ufeff# Wavelength , FLUX\r\n# a comment, with a comma\r\n4000.5,\r\n".replace("4000.5,\r\n", "").encode()
        + rows.encode()
        + b"9001,\r\n"
    )
    spectrum = read_spectra(tmp_path / "a.csv")[0]
    clean, dropped = check_spectrum(spectrum, "x")
    assert dropped == 1 and np.allclose(clean["flux"], flux_of())


@pytest.mark.filterwarnings("ignore:File may have been truncated")
def test_damaged_files_are_one_line(tmp_path):
    write_sdss(tmp_path / "cut.fits")
    (tmp_path / "cut.fits").write_bytes((tmp_path / "cut.fits").read_bytes()[:9000])
    (tmp_path / "text.fits").write_text("not FITS at all")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 broken")
    np.savez(tmp_path / "object.npz", wavelength=np.array([{}], object), flux=[1.0])
    np.savez(tmp_path / "ragged.npz", wavelength=WAVELENGTH, flux=flux_of()[:-1])
    for name in ("cut.fits", "text.fits", "bad.npz", "object.npz", "ragged.npz"):
        assert name in refused(tmp_path, tmp_path / name, "--target", "wd")


def test_desi_without_redrock_single_exposures_and_mismatch(tmp_path):
    write_desi(tmp_path / "coadd-a.fits", redshifts=False)
    assert {entry["redshift"] for entry in read_spectra(tmp_path / "coadd-a.fits")} == {None}
    write_desi(tmp_path / "spectra-b.fits", targets=(1, 1), redshifts=False)
    with pytest.raises(SystemExit, match="spectra-b.fits: a TARGETID occurs twice.*coadd"):
        read_spectra(tmp_path / "spectra-b.fits")
    with fits.open(tmp_path / "coadd-a.fits") as hdus:
        fits.HDUList([hdu for hdu in hdus if hdu.name != "R_FLUX"]).writeto(tmp_path / "c.fits")
    with pytest.raises(SystemExit, match="R_WAVELENGTH without R_FLUX"):
        read_spectra(tmp_path / "c.fits")


# ---------------------------------------------------------------- vetting


def test_vetting_without_labels(tmp_path):
    folder = write_every_layout(tmp_path / "spectra")
    out, parts, stats = run(tmp_path, folder, "--target", "wd")
    rows = parts["dev"]
    assert parts["rl_train"] == parts["test"] == [] and len(rows) == 8 and {row["label"] for row in rows} == {None}
    assert [row["source_name"] for row in rows] == [
        "arms.fits",
        "39001",
        "39002",
        "new.fits",
        "night/mine.csv",
        "old.fits.gz",
        "ours.npz",
        "spec-1.fits",
    ]
    assert [row["id"] for row in rows][1] == "wd-coadd-main-dark-1.fits-39001"
    assert stats["counts"] == {
        "layout_csv": 1, "layout_desi": 2, "layout_lamost": 2, "layout_lamost-image": 1, "layout_npz": 1, "layout_sdss": 1, "spectra": 8,
        "pixels_dropped": 6, "redshift_from_file": 6, "redshift_none": 2, "targets_without_data": 1,
    }  # fmt: skip
    for row in rows:
        assert row["picture"] == [96, 64] and not Path(row["spectrum"]).is_absolute()
        assert Image.open(out / row["images"][0]).size == (96, 64)
        with np.load(out / row["spectrum"]) as data:
            assert np.isfinite(data["flux"]).all() and len(data["flux"]) == len(data["wavelength"]) > 300
        assert "label" not in json.dumps(row["messages"]) and row["messages"][-1]["content"][0] == {
            "type": "image",
            "image": row["images"][0],
        }
    sdss = np.load(out / rows[-1]["spectrum"])
    assert float(sdss["redshift"]) == pytest.approx(0.0004) and len(sdss["ivar"]) == 399


def test_the_first_picture_and_the_prompt_are_in_the_rest_frame(tmp_path):
    write_csv(tmp_path / "s" / "a.csv", redshift=[0.1] * 400)
    labels = labels_csv(tmp_path, "a.csv,wd,YES,0.05", header="file,task,label,redshift")
    out, parts, stats = run(tmp_path, tmp_path / "s", "--labels", labels, "--val-fraction", 1)
    text = parts["dev"][0]["messages"][-1]["content"][-1]["text"]
    assert f"{3800 / 1.05:.0f}" in text and f"{9000 / 1.05:.0f}" in text
    assert float(np.load(out / parts["dev"][0]["spectrum"])["redshift"]) == 0.05 and stats["counts"]["redshift_from_labels"] == 1
    out, parts, stats = run(tmp_path, tmp_path / "s", "--target", "wd")  # a pipeline redshift of 0.1 is no star's
    assert float(np.load(out / parts["dev"][0]["spectrum"])["redshift"]) == 0 and stats["counts"]["redshift_not_a_star"] == 1


def test_vetting_needs_a_question(tmp_path):
    write_csv(tmp_path / "s" / "a.csv")
    assert "--target TASK" in refused(tmp_path, tmp_path / "s")
    assert "expected one of cv, cc" in refused(tmp_path, tmp_path / "s", "--target", "galaxy")
    (tmp_path / "empty").mkdir()
    assert "no spectra" in refused(tmp_path, tmp_path / "empty", "--target", "wd")


def test_spectra_hold_no_demonstrations(tmp_path, capsys):
    write_csv(tmp_path / "a.csv")
    args = arguments(tmp_path, tmp_path / "a.csv", "--target", "wd")
    args.stage = "all"
    spec_o3_files.prepare_sft(args)
    assert "skipped" in capsys.readouterr().out
    args.stage = "sft"
    with pytest.raises(SystemExit, match="no demonstrations"):
        spec_o3_files.prepare_sft(args)


# ---------------------------------------------------------------- labels


def test_labelled_spectra_are_split_by_object(tmp_path):
    folder = many(tmp_path)
    lines = [f"star-{n:02d}.csv,{task},{'YES' if n % 2 else 'no'}" for n in range(18) for task in ("wd", "cv")]
    out, parts, stats = run(tmp_path, folder, "--labels", labels_csv(folder, *lines), "--val-fraction", 0.2)
    names = sorted(f"star-{n:02d}.csv" for n in range(18))
    random.Random(42).shuffle(names)
    sources = {name: {row["source_name"] for row in rows} for name, rows in parts.items()}
    assert sources["dev"] == set(names[:4]) and len(sources["test"]) == 4 and len(sources["rl_train"]) == 10
    assert all(len(rows) == 2 * len(sources[name]) for name, rows in parts.items())  # both questions of an object stay together
    assert (
        not sources["dev"] & sources["test"]
        and not sources["rl_train"] & (sources["dev"] | sources["test"])
        and stats["source_overlap"] == 0
    )
    assert stats["counts"]["spectra_without_label"] == 2  # star-18 and star-19
    assert {row["label"] for row in parts["rl_train"]} == {"YES", "NO"} and "split" not in parts["dev"][0]
    first = [row for row in parts["rl_train"] if row["source_name"] == parts["rl_train"][0]["source_name"]]
    assert [row["task"] for row in first] == ["wd", "cv"] and first[0]["images"] == first[1]["images"]
    again = run(tmp_path, folder, "--labels", folder / "labels.csv", "--val-fraction", 0.2)[1]
    other = run(tmp_path, folder, "--labels", folder / "labels.csv", "--val-fraction", 0.2, "--seed", 1)[1]
    assert again == parts and other != parts


def test_splits_of_the_user_are_kept(tmp_path):
    folder = many(tmp_path, 6)
    lines = [f"star-{n:02d}.csv,wd,YES,{split}" for n, split in enumerate(("train", "train", "dev", "test", "", ""))]
    labels = labels_csv(tmp_path, *lines, header="file,task,label,split")
    _, parts, _ = run(tmp_path, folder, "--labels", labels, "--val-fraction", 0)
    assert {name: [row["source_name"][5:7] for row in rows] for name, rows in parts.items()} == {
        "rl_train": ["00", "01", "04", "05"], "dev": ["02"], "test": ["03"],
    }  # fmt: skip


def test_P50_fractions_and_small_sets(tmp_path):
    folder = many(tmp_path, 5)
    labels = labels_csv(tmp_path, *(f"star-{n:02d}.csv,wd,YES" for n in range(5)))
    for value, sizes in ((0, (5, 0, 0)), (1, (0, 5, 0)), (0.6, (0, 3, 2)), (0.2, (3, 1, 1)), (0.05, (5, 0, 0))):
        parts = run(tmp_path, folder, "--labels", labels, "--val-fraction", value)[1]
        assert tuple(len(parts[name]) for name in ("rl_train", "dev", "test")) == sizes, value


def test_desi_targets_are_labelled_by_source_name(tmp_path):
    (tmp_path / "s").mkdir()
    write_desi(tmp_path / "s" / "coadd-x.fits")
    labels = labels_csv(tmp_path, "39002,wd,YES", header="source_name,task,label")
    _, parts, stats = run(tmp_path, tmp_path / "s", "--labels", labels, "--val-fraction", 0)
    assert [row["source_name"] for row in parts["rl_train"]] == ["39002"] and stats["counts"]["spectra_without_label"] == 2
    labels = labels_csv(tmp_path, "coadd-x.fits,39001,wd,NO", "coadd-x.fits,39002,wd,YES", header="file,source_name,task,label")
    _, parts, _ = run(tmp_path, tmp_path / "s", "--labels", labels, "--val-fraction", 0)
    assert [(row["source_name"], row["label"]) for row in parts["rl_train"]] == [("39001", "NO"), ("39002", "YES")]


def test_two_spectra_of_one_star_share_a_split(tmp_path):
    folder = many(tmp_path, 12)
    lines = [f"star-{n:02d}.csv,gaia-{n // 2},wd,{'YES' if n < 6 else 'NO'}" for n in range(12)]
    labels = labels_csv(tmp_path, *lines, header="file,source_name,task,label")
    _, parts, stats = run(tmp_path, folder, "--labels", labels, "--val-fraction", 0.34)
    assert stats["objects"] == {"bench_rl_train": 2, "bench_dev": 2, "bench_test": 2} and [len(rows) for rows in parts.values()] == [
        4,
        4,
        4,
    ]
    assert len({row["id"] for rows in parts.values() for row in rows}) == 12


def test_unknown_labels_go_to_dev_and_target_fills_the_task(tmp_path):
    folder = many(tmp_path, 3)
    labels = labels_csv(tmp_path, "star-00.csv,YES", "star-01.csv,", "star-02.csv,NO", header="file,label")
    _, parts, _ = run(tmp_path, folder, "--labels", labels, "--target", "cc", "--val-fraction", 0)
    assert [(row["task"], row["label"]) for row in parts["rl_train"]] == [("cc", "YES"), ("cc", "NO")]
    assert [(row["source_name"], row["label"]) for row in parts["dev"]] == [("star-01.csv", None)]


def test_objects_of_the_cold_start_are_counted(tmp_path):
    folder = many(tmp_path, 4)
    sft = tmp_path / "out" / "spec_o3" / "sft"
    sft.mkdir(parents=True)
    (sft / "sft_train.jsonl").write_text('{"source_name": "star-00.csv"}\n')
    (sft / "sft_val.jsonl").write_text('{"source_name": "elsewhere"}\n')
    assert run(tmp_path, folder, "--target", "wd")[2]["sft_dev_source_overlap"] == 1


@pytest.mark.parametrize(
    "header, lines, pattern",
    [
        ("file,label", ["star-00.csv,YES"], r"labels.csv: expected columns .*task.*; found file, label"),
        ("name,task,label", ["star-00.csv,wd,YES"], r"labels.csv: expected columns file or source_name.*found name, task, label"),
        ("file;task;label", ["star-00.csv;wd;YES"], r"found file;task;label"),
        ("file,task,label", ["star-00.csv,wd,YES", "star-01.csv,wd,PERHAPS"], r"line 3: the label is 'PERHAPS', neither YES nor NO"),
        (
            "file,task,label",
            ["star-00.csv,wd,YES", "star-00.csv,wd,NO"],
            r"line 3: a second label of star-00.csv for wd: NO here, YES on line 2",
        ),
        ("file,task,label", ["star-00.csv,wd,YES", "./star-00.csv,wd,YES"], r"line 3: a second label of star-00.csv"),
        ("file,source_name,task,label", ["star-00.csv,g1,wd,YES", "star-01.csv,g1,wd,NO"], r"line 3: a second label of g1 for wd"),
        ("file,task,label", ["star-99.csv,wd,YES"], r"line 2: the file star-99.csv is not below --spectra"),
        ("source_name,task,label", ["39001,wd,YES"], r"line 2: no spectrum below .* is called 39001"),
        ("file,task,label", ["star-00.csv,xx,YES"], r"line 2: the task is 'xx', not one of cv"),
        ("file,task,label", ["star-00.csv,wd"], r"line 2: the number of cells"),
        ("file,task,label", ["star-00.csv,wd,YES,extra"], r"line 2: the number of cells"),
        ("file,task,label", [",wd,YES"], r"line 2: neither file nor source_name"),
        ("file,task,label", [], r"labels.csv: no labels"),
        ("file,task,label,split", ["star-00.csv,wd,YES,validation"], r"line 2: the split is 'validation'"),
        ("file,task,label,redshift", ["star-00.csv,wd,YES,high"], r"line 2: the redshift is 'high'"),
        ("file,task,label,redshift", ["star-00.csv,wd,YES,-1"], r"line 2: the redshift is '-1'"),
        ("file,task,label,split", ["star-00.csv,wd,YES,train", "star-00.csv,cv,NO,test"], r"star-00.csv: is in the splits train and test"),
    ],
)
def test_label_mistakes_name_the_line(tmp_path, header, lines, pattern):
    folder = many(tmp_path, 3)
    message = refused(tmp_path, folder, "--labels", labels_csv(tmp_path, *lines, header=header))
    assert re.search(pattern, message), message


def test_ambiguous_names_and_targets_without_their_id(tmp_path):
    for night in ("a", "b"):
        write_csv(tmp_path / "s" / night / "star.csv")
    write_desi(tmp_path / "s" / "coadd-x.fits")
    assert "ambiguous: a/star.csv, b/star.csv" in refused(tmp_path, tmp_path / "s", "--labels", labels_csv(tmp_path, "star.csv,wd,YES"))
    assert "holds 3 targets, so line 2" in refused(tmp_path, tmp_path / "s", "--labels", labels_csv(tmp_path, "coadd-x.fits,wd,YES"))
    _, parts, _ = run(tmp_path, tmp_path / "s", "--labels", labels_csv(tmp_path, "a/star.csv,wd,YES"), "--val-fraction", 0)
    assert [row["source_name"] for row in parts["rl_train"]] == ["a/star.csv"]


def test_smoke_takes_a_few_labelled_spectra(tmp_path):
    folder = many(tmp_path, 20)
    labels = labels_csv(tmp_path, *(f"star-{n:02d}.csv,wd,YES" for n in range(10, 20)))
    _, parts, stats = run(tmp_path, folder, "--labels", labels, "--smoke", "--val-fraction", 0)
    assert stats["files"] == 8 == len(parts["rl_train"])


def test_workers_write_the_same(tmp_path):
    folder = many(tmp_path, 4)
    one = run(tmp_path, folder, "--target", "wd")[1]
    assert run(tmp_path / "b", folder, "--target", "wd", "--workers", 2)[1] == one


def test_an_error_keeps_what_was_there(tmp_path):
    folder = many(tmp_path, 3)
    run(tmp_path, folder, "--target", "wd")
    write_csv(folder / "star-02.csv", flux=np.full(400, np.nan))
    with pytest.raises(SystemExit, match="star-02.csv: no flux is a finite number"):
        run(tmp_path, folder, "--target", "wd")
    out = tmp_path / "out" / "spec_o3"
    assert [path.name for path in out.iterdir()] == ["rl"] and len(read_jsonl(out / "rl" / "bench_dev.jsonl")) == 3


def test_a_picture_without_a_size_gets_the_size_of_the_window(tmp_path):
    write_csv(tmp_path / "a.csv")
    args = arguments(tmp_path, tmp_path / "a.csv", "--target", "wd", "--picture-size", "auto")
    spec_o3_files.prepare_bench(args)
    out = tmp_path / "out" / "spec_o3" / "rl"
    row = read_jsonl(out / "bench_dev.jsonl")[0]
    assert row["picture"] is None and Image.open(io.BytesIO((out / row["images"][0]).read_bytes())).width > 400

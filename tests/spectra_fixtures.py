"""Small folders with the schema of the public data sets and the layouts of the surveys, and the calls that the tests make on them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from astropy.io import fits
from PIL import Image

import prepare_data
import runs
from protocol import read_jsonl
from tasks import spec_o3_files

QUESTIONS = {"cv": "a Cataclysmic Variable", "cc": "a Carbon Star", "ss": "an S-type Star", "gm": "an M-type Giant", "wd": "a White Dwarf"}


def png(shade=0, size=(40, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade % 256, 80, 120)).save(buffer, "PNG")
    return buffer.getvalue()


def sample(number, task="wd", source=None, label="YES", think="Broad lines?", argument="Hβ"):
    call = {"name": "spectral_visualization_tool", "arguments": {"wavelength_range": [4800, 4920], "label": argument}}
    return {
        "conversations": [
            {"from": "system", "value": "You are an astronomer.\n# Tools\n<tools>[...]</tools>"},
            {"from": "human", "value": f"<image>\nIs this {QUESTIONS[task]}?\nLook at the lines."},
            {
                "from": "gpt",
                "value": f"<think>\n{think}\n</think>\n<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>",
            },
            {"from": "human", "value": "<tool_response>\n<image>\nGenerated.\n</tool_response>"},
            {"from": "gpt", "value": f"<think>\nSeen.\n</think>\n<answer>\\boxed{{{label}}} Broad.</answer>"},
        ],
        "images": [f"images/{number}-0.png", f"images/{number}-1.png"],
        "source_name": source or f"spec-{number}.fits.gz",
        "sample_index": 0,
        "ground_truth": label,
    }


def write_sft(folder, samples):
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, entry in enumerate(samples):
        for name in entry["images"]:
            (folder / name).write_bytes(png(number))
    (folder / "train_sharegpt.json").write_text(json.dumps(samples, ensure_ascii=True))
    return folder


def question(part, task, number, source=None, redshift=0.001, image=None, label=None):
    create = {"wavelength": np.linspace(3800, 9000, 50).tolist(), "flux": [float(number)] * 50, "redshift": redshift}
    return {
        "data_source": task,
        "prompt": [{"role": "user", "content": f"<image>\nIs this {QUESTIONS[task]}?"}],
        "images": [{"bytes": png(number) if image is None else image, "path": None}],
        "reward_model": {"ground_truth": label or ("YES" if number % 2 else "NO"), "style": "rule"},
        "extra_info": {
            "index": f"{part}-{task}-{number:04d}-uuid",
            "name": source or f"{task}-{part}-{number}.fits.gz",
            "tools_kwargs": {"spectral_visualization_tool": {"create_kwargs": create}},
        },
    }


REDSHIFT = pa.float64()  # a column of nulls alone would be typed `null`
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.string()),
                    ("name", pa.string()),
                    (
                        "tools_kwargs",
                        pa.struct(
                            [
                                (
                                    "spectral_visualization_tool",
                                    pa.struct(
                                        [
                                            (
                                                "create_kwargs",
                                                pa.struct(
                                                    [
                                                        ("wavelength", pa.list_(pa.float64())),
                                                        ("flux", pa.list_(pa.float64())),
                                                        ("redshift", REDSHIFT),
                                                    ]
                                                ),
                                            )
                                        ]
                                    ),
                                )
                            ]
                        ),
                    ),
                ]
            ),
        ),
    ]
)


def write_bench(folder, rows_by_file, row_group_size=None):
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name, rows in rows_by_file.items():
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "data" / f"{name}.parquet", row_group_size=row_group_size)
    return folder


def small_bench(folder, **changes):
    files = {f"{part}_{task}": [question(part, task, n) for n in range(6)] for part in ("train", "test") for task in QUESTIONS}
    return write_bench(folder, files | changes)


def run_hub(tmp_path, stage, *more, **sources):
    flags = [item for name, path in sources.items() for item in (f"--{name}-source", str(path))]
    args = prepare_data.parse_args([stage, "--source", "hub", "--output", str(tmp_path / "out"), "--workers", "1", *flags, *map(str, more)])
    task = runs.load_module("tasks", "spec_o3")
    for name in ("sft", "bench") if stage == "all" else (stage,):
        getattr(task, f"prepare_{name}")(args)
    return tmp_path / "out" / "spec_o3"


def hub_refused(tmp_path, stage, *more, **sources):
    """The one line that a stage stops with; nothing may be left behind."""
    before = sorted((tmp_path / "out").rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        run_hub(tmp_path, stage, *more, **sources)
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.name != "spec_o3") == [p for p in before if p.name != "spec_o3"]
    message = str(stopped.value)
    assert "\n" not in message and message
    return message


# ---------------------------------------------------------------- spectra of surveys

WAVELENGTH = np.linspace(3800, 9000, 400)
LOGLAM = np.linspace(3.58, 3.96, 400)


def flux_of(number=0, size=400):
    return 1 + 0.1 * np.sin(np.arange(size) / 7 + number)


def write_csv(path, number=0, wavelength=WAVELENGTH, flux=None, header="wavelength,flux", **columns):
    flux = flux_of(number, len(wavelength)) if flux is None else flux
    lines = [",".join(map(str, values)) for values in zip(wavelength, flux, *columns.values(), strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join([header, *columns]), *lines]) + "\n")
    return path


def write_sdss(path, z=0.0004, name="SPECOBJ"):
    table = fits.BinTableHDU.from_columns(
        [
            fits.Column("flux", "E", array=flux_of()),
            fits.Column("loglam", "E", array=LOGLAM),
            fits.Column("ivar", "E", array=np.where(np.arange(400) == 7, 0, 4.0)),
            fits.Column("and_mask", "J", array=np.zeros(400)),
        ],
        name="COADD",
    )
    info = fits.BinTableHDU.from_columns([fits.Column("CLASS", "10A", array=["STAR"]), fits.Column("Z", "E", array=[z])], name=name)
    exposure = fits.BinTableHDU.from_columns(
        [fits.Column("flux", "E", array=[9.0] * 5), fits.Column("loglam", "E", array=np.arange(5.0))], name="B1-001"
    )
    fits.HDUList([fits.PrimaryHDU(), table, info, exposure]).writeto(path)


def write_lamost_image(path, z=-9999.0):
    image = fits.PrimaryHDU(np.array([flux_of(), np.full(400, 4.0), WAVELENGTH, np.zeros(400), np.zeros(400)], "f4"))
    image.header["Z"] = z
    image.header["COEFF0"] = 3.5798  # old LAMOST files carry the keywords of SDSS templates as well
    image.header["COEFF1"] = 0.0001
    fits.HDUList([image]).writeto(path)


def lamost_table(name, wavelength, flux, ivar):
    size = len(wavelength)
    columns = [fits.Column(key, f"{size}E", array=[value]) for key, value in (("FLUX", flux), ("IVAR", ivar), ("WAVELENGTH", wavelength))]
    return fits.BinTableHDU.from_columns([*columns, fits.Column("ANDMASK", f"{size}J", array=[np.zeros(size)])], name=name)


def write_lamost(path, z=0.00012):
    primary = fits.PrimaryHDU()
    primary.header["Z"] = z
    fits.HDUList([primary, lamost_table("COADD", WAVELENGTH, flux_of(), np.full(400, 4.0))]).writeto(path)


def write_lamost_arms(path):
    blue, red = (
        lamost_table("COADD_B", WAVELENGTH[:250], np.ones(250), np.ones(250)),
        lamost_table("COADD_R", WAVELENGTH[200:], np.full(200, 3.0), np.full(200, 3.0)),
    )
    single = lamost_table("B-84420148-23", WAVELENGTH[:250], np.full(250, 99.0), np.ones(250))
    fits.HDUList([fits.PrimaryHDU(), blue, red, single]).writeto(path)


def write_desi(path, targets=(39001, 39002, 39003, 39004), redshifts=True):
    """Arms that overlap by 50 pixels; target 2 has masked pixels, target 3 is sky, target 4 has no data."""
    grids, count = {"B": WAVELENGTH[:200], "R": WAVELENGTH[150:350], "Z": WAVELENGTH[300:]}, len(targets)
    hdus = [fits.PrimaryHDU()]
    kinds = (["TGT", "TGT", "SKY", "TGT"] * count)[:count]
    columns = [fits.Column("TARGETID", "K", array=list(targets)), fits.Column("OBJTYPE", "3A", array=kinds)]
    hdus.append(fits.BinTableHDU.from_columns(columns, name="FIBERMAP"))
    for arm, grid in grids.items():
        flux = np.array([flux_of(n, len(grid)) for n in range(count)])
        ivar, mask = np.full(flux.shape, 4.0), np.zeros(flux.shape, "i4")
        if count > 3:
            ivar[3] = 0
        mask[min(1, count - 1), 20:25] = 1
        hdus += [
            fits.ImageHDU(grid, name=f"{arm}_WAVELENGTH"),
            fits.ImageHDU(flux.astype("f4"), name=f"{arm}_FLUX"),
            fits.ImageHDU(ivar.astype("f4"), name=f"{arm}_IVAR"),
            fits.ImageHDU(mask, name=f"{arm}_MASK"),
            fits.ImageHDU(np.zeros((count, 3, len(grid)), "f4"), name=f"{arm}_RESOLUTION"),
        ]
    fits.HDUList(hdus).writeto(path)
    if redshifts:
        columns = [fits.Column("TARGETID", "K", array=list(targets)), fits.Column("Z", "D", array=np.arange(count) * 1e-4 + 1e-4)]
        fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU.from_columns(columns, name="REDSHIFTS")]).writeto(
            path.with_name(path.name.replace("coadd-", "redrock-"))
        )


def write_every_layout(folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_sdss(folder / "spec-1.fits")
    write_lamost_image(folder / "old.fits.gz")
    write_lamost(folder / "new.fits")
    write_lamost_arms(folder / "arms.fits")
    write_desi(folder / "coadd-main-dark-1.fits")
    write_csv(folder / "night" / "mine.csv", redshift=[0.002] * 400)
    np.savez(folder / "ours.npz", WAVELENGTH=WAVELENGTH, Flux=flux_of(), redshift=-0.001)
    return folder


def labels_csv(tmp_path, *lines, header="file,task,label"):
    path = tmp_path / "labels.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def arguments(tmp_path, spectra, *more):
    flags = [
        "bench",
        "--source",
        "files",
        "--output",
        tmp_path / "out",
        "--workers",
        1,
        "--spectra",
        spectra,
        "--picture-size",
        "96x64",
        *more,
    ]
    return prepare_data.parse_args(list(map(str, flags)))


def run_files(tmp_path, spectra, *more):
    spec_o3_files.prepare_bench(arguments(tmp_path, spectra, *more))
    out = tmp_path / "out" / "spec_o3" / "rl"
    parts = {name: read_jsonl(out / f"bench_{name}.jsonl") for name in ("rl_train", "dev", "test")}
    return out, parts, json.loads((out / "bench_stats.json").read_text())


def files_refused(tmp_path, spectra, *more):
    """The one line that the run stops with; nothing may be left behind."""
    with pytest.raises(SystemExit) as stopped:
        run_files(tmp_path, spectra, *more)
    message = str(stopped.value)
    assert "\n" not in message and message
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name != "spec_o3"]
    return message


def many(tmp_path, count=20):
    for number in range(count):
        write_csv(tmp_path / "s" / f"star-{number:02d}.csv", number)
    return tmp_path / "s"

"""Reading a spectrum whatever its survey: the layout is recognised by content, never by name.

| SDSS, BOSS | table COADD with loglam, flux, ivar; Z in SPECOBJ or SPALL |
| LAMOST | table COADD: one row of vectors FLUX, WAVELENGTH, IVAR (arms COADD_B and COADD_R are joined); Z in the header |
| LAMOST before DR9 | image whose rows are flux, ivar, wavelength ...; Z in the header |
| DESI coadd | images {B,R,Z}_WAVELENGTH, _FLUX, _IVAR, _MASK and the table FIBERMAP: many targets; Z in the redrock file beside it |
| CSV, NPZ | wavelength (or loglam), flux [, ivar] [, redshift]; names in any case |

Wavelengths are in Å, observed frame. A record is a dict: name, wavelength [n], flux [n], ivar [n] or None, redshift or None, layout.
What cannot be right stops with one line that names the file, and the line or index in it.
"""

import csv
from pathlib import Path

import numpy as np

from datafiles import stop

MAX_FLUX = 1e30
MIN_PIXELS = 10
EXPECTED = (
    "a table COADD with loglam or WAVELENGTH, FLUX, IVAR (SDSS, LAMOST), an image with rows flux, ivar, wavelength (older LAMOST), "
    "or images B_WAVELENGTH, B_FLUX ... (DESI)"
)


def record(name, wavelength, flux, ivar=None, redshift=None, layout=""):
    wavelength, flux, ivar = (None if array is None else np.array(array, float) for array in (wavelength, flux, ivar))  # FITS is big-endian
    return {"name": name, "wavelength": wavelength, "flux": flux, "ivar": ivar, "redshift": redshift, "layout": layout}


def pick(columns, *names):
    """The value of the first of `names` that is a key of `columns`, whatever its case; else None."""
    lower = {str(key).strip().casefold(): value for key, value in columns.items()}
    return next((lower[name] for name in names if name in lower), None)


def from_columns(columns, name, where, layout):
    """A record from named 1-D arrays."""
    wavelength, loglam, flux = pick(columns, "wavelength", "wave", "lambda"), pick(columns, "loglam"), pick(columns, "flux")
    if flux is None or wavelength is None and loglam is None:
        stop(where, f"expected columns wavelength, flux [, ivar] [, redshift]; found {', '.join(map(str, columns)) or 'none'}")
    try:
        redshift = np.ravel(np.asarray(pick(columns, "redshift", "z"), float))  # None becomes NaN
        found = np.unique(redshift[np.isfinite(redshift)])
        if len(found) > 1:
            stop(where, f"the redshift column holds {len(found)} values, {found[0]:g} to {found[-1]:g}; a spectrum has one")
        wavelength = 10.0 ** np.asarray(loglam, float) if wavelength is None else wavelength
        return record(name, wavelength, flux, pick(columns, "ivar"), float(found[0]) if len(found) else None, layout)
    except (TypeError, ValueError) as error:
        stop(where, f"not numbers: {error}")


def read_csv(path, name):
    """Comma-separated with a header line; empty cells are NaN, lines that start with # are comments (a # before the header is fine)."""
    values = []
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        header = [cell.strip().lstrip("# ") for cell in next(reader, [])]
        for cells in reader:
            if not cells or cells[0].startswith("#"):
                continue
            where = f"{path} line {reader.line_num}"
            if len(cells) != len(header):
                stop(where, f"{len(cells)} cells under {len(header)} columns")
            for column, cell in zip(header, cells, strict=True):
                try:
                    values.append(float(cell) if cell.strip() else np.nan)
                except ValueError:
                    stop(where, f"{column} is {cell!r}, not a number")
    table = np.array(values, float).reshape(-1, max(1, len(header)))
    return [from_columns(dict(zip(header, table.T, strict=False)), name, path, "csv")]


def read_npz(path, name):
    try:
        with np.load(path) as data:
            columns = {key: data[key] for key in data.files}
    except Exception as error:  # zipfile, pickle and numpy each have their own for damaged files
        stop(path, f"not a readable npz file: {error}")
    return [from_columns(columns, name, path, "npz")]


def join_arms(arms):
    """Arms [(wavelength, flux, ivar)] -> one spectrum; pixels that share a wavelength are averaged by inverse variance."""
    wavelength, flux, ivar = (np.concatenate([np.asarray(arm[index], float) for arm in arms]) for index in range(3))
    good = np.isfinite(flux) & np.isfinite(ivar) & (ivar > 0)
    flux, ivar = np.where(good, flux, 0), np.where(good, ivar, 0)
    _, first, place = np.unique(np.round(wavelength, 3), return_index=True, return_inverse=True)
    total = np.bincount(place, ivar)
    mean = np.bincount(place, flux * ivar) / np.where(total > 0, total, 1)
    return wavelength[first], np.where(total > 0, mean, np.nan), total


def redshift_of(hdus):
    """Z of SDSS's one-line tables or of LAMOST's header, or None."""
    for hdu in hdus:
        if hdu.name in ("SPECOBJ", "SPALL") and hdu.data is not None and len(hdu.data) == 1:
            found = pick({column: hdu.data[column][0] for column in hdu.columns.names}, "z")
            if found is not None:
                return float(found)
    found = next((hdu.header["Z"] for hdu in hdus if isinstance(hdu.header.get("Z"), int | float)), None)
    return None if found is None else float(found)


def read_desi(hdus, arms, path):
    """One record per target of a DESI coadd; sky fibres are left out."""
    from astropy.io import fits

    by_name = {hdu.name: hdu for hdu in hdus}  # data are loaded when asked for: the resolution matrices never are
    for arm in arms:
        if f"{arm}_FLUX" not in by_name:
            stop(path, f"{arm}_WAVELENGTH without {arm}_FLUX")
    count = len(by_name[f"{arms[0]}_FLUX"].data)
    table = by_name["FIBERMAP"].data if "FIBERMAP" in by_name else None
    names = [f"{path.name}-{index}" for index in range(count)] if table is None else [str(target) for target in table["TARGETID"]]
    kinds = ["TGT"] * count if table is None or "OBJTYPE" not in table.names else [str(kind).strip() for kind in table["OBJTYPE"]]
    if len(names) != count:
        stop(path, f"FIBERMAP has {len(names)} rows, {arms[0]}_FLUX has {count}")
    if len(set(names)) < count:
        stop(path, "a TARGETID occurs twice, so this holds single exposures; give the coadd file")
    redshifts, beside = {}, path.with_name(path.name.replace("coadd-", "redrock-", 1))
    if beside != path and beside.exists():
        with fits.open(beside) as other:
            if "REDSHIFTS" in other:
                found = other["REDSHIFTS"].data
                redshifts = {str(target): float(z) for target, z in zip(found["TARGETID"], found["Z"], strict=True)}
    spectra = []
    for index, name in enumerate(names):
        if kinds[index] not in ("TGT", ""):
            continue
        parts = []
        for arm in arms:
            flux = by_name[f"{arm}_FLUX"].data[index]
            ivar = by_name[f"{arm}_IVAR"].data[index].astype(float) if f"{arm}_IVAR" in by_name else np.ones(len(flux))
            if f"{arm}_MASK" in by_name:
                ivar = np.where(by_name[f"{arm}_MASK"].data[index] == 0, ivar, 0)
            parts.append((by_name[f"{arm}_WAVELENGTH"].data, flux, ivar))
        spectra.append(record(name, *join_arms(parts), redshifts.get(name), "desi"))
    return spectra


def read_tables(hdus, name, path):
    """SDSS and LAMOST tables: one pixel a row, or one row of vectors. None if there is no such table."""
    tables = {}
    for hdu in hdus:
        columns = [column.casefold() for column in hdu.columns.names] if hasattr(hdu, "columns") else []
        if "flux" in columns and {"loglam", "wavelength"} & set(columns):
            tables.setdefault(hdu.name, hdu)
    coadds = [tables[key] for key in tables if key.startswith("COADD")] or list(tables.values())[:1]  # the rest are single exposures
    parts = []
    for hdu in coadds:
        columns = {
            column: np.ravel(hdu.data[column])
            for column in hdu.columns.names
            if column.casefold() in ("wavelength", "loglam", "flux", "ivar")
        }
        part = from_columns(columns, name, path, "")
        parts.append((part["wavelength"], part["flux"], np.ones(len(part["flux"])) if part["ivar"] is None else part["ivar"]))
    if not parts:
        return None
    layout = "sdss" if pick(dict.fromkeys(coadds[0].columns.names, True), "loglam") else "lamost"
    return record(name, *(join_arms(parts) if len(parts) > 1 else parts[0]), redshift_of(hdus), layout)


def read_fits(path, name):
    """The records of a FITS file; stops with what was found and what is expected if no layout fits."""
    from astropy.io import fits

    try:
        with fits.open(path, memmap=False) as hdus:
            arms = [hdu.name.removesuffix("_WAVELENGTH") for hdu in hdus if hdu.name.endswith("_WAVELENGTH")]
            if arms:
                return read_desi(hdus, arms, path)
            found = read_tables(hdus, name, path)
            if found:
                return [found]
            image = hdus[0].data
            if image is not None and image.ndim == 2 and len(image) >= 3 and image[2].min() > 1000 and image[2, -1] > image[2, 0]:
                return [record(name, image[2], image[0], image[1], redshift_of(hdus), "lamost-image")]
            found = []
            for hdu in hdus:
                shape = "empty" if hdu.data is None else "x".join(map(str, hdu.data.shape))
                found.append(f"{hdu.name or 'unnamed'} ({', '.join(hdu.columns.names) if hasattr(hdu, 'columns') else shape})")
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        stop(path, f"not a readable FITS file: {error}")
    stop(path, f"no known layout. Found {'; '.join(found)}. Expected {EXPECTED}")


def read_spectra(path, name=None):
    """All spectra of a file as records (head of this module). name: what a single spectrum is called, by default the file's name."""
    path = Path(path)
    reader = {".csv": read_csv, ".npz": read_npz}.get(path.suffix.lower(), read_fits)
    return reader(path, name or path.name)


def check_spectrum(spectrum, where):
    """Drop pixels whose flux is not finite or whose inverse variance is not positive; returns (clean record, number dropped)."""
    wavelength, flux, ivar = spectrum["wavelength"], spectrum["flux"], spectrum["ivar"]
    shapes = {array.shape for array in (wavelength, flux, ivar) if array is not None}
    if len(shapes) > 1 or wavelength.ndim != 1:
        stop(where, f"wavelength, flux and ivar must be 1-D and equally long, not {', '.join(map(str, sorted(shapes)))}")
    wrong = np.flatnonzero(~np.isfinite(wavelength))
    if len(wrong):
        stop(where, f"wavelength[{wrong[0]}] is {wavelength[wrong[0]]}")
    wrong = np.flatnonzero(np.diff(wavelength) <= 0)
    if len(wrong):
        stop(
            where,
            f"wavelengths must increase, but wavelength[{wrong[0] + 1}] = {wavelength[wrong[0] + 1]:g} follows {wavelength[wrong[0]]:g}",
        )
    if len(wavelength) and not (wavelength[0] > 500 and 2000 < wavelength[-1] < 200000):
        stop(where, f"wavelengths run from {wavelength[0]:g} to {wavelength[-1]:g}; expected Å (not nm, µm or log10)")
    good = np.isfinite(flux)
    if len(good) and not good.any():
        stop(where, "no flux is a finite number")
    if ivar is not None:
        good &= np.isfinite(ivar) & (ivar > 0)
    if good.sum() < MIN_PIXELS:
        stop(where, f"{good.sum()} usable pixels (finite flux, positive inverse variance); at least {MIN_PIXELS} are needed")
    if np.abs(flux[good]).max() > MAX_FLUX:
        stop(where, f"flux of {np.abs(flux[good]).max():.3g}: beyond {MAX_FLUX:.0g} no axis can be drawn; divide by a constant, units don't matter")
    clean = spectrum | {"wavelength": wavelength[good], "flux": flux[good], "ivar": None if ivar is None else ivar[good]}
    return clean, int((~good).sum())

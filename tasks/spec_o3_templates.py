"""Star templates of redrock (DESI) and SDSS as semi-synthetic questions, for trying the task on real spectral shapes.

    python prepare_data.py bench --source files --spectra DIR_OF_TEMPLATES --template-noise 10 --template-count 20

A row made here says so (`semi_synthetic`, `snr`, `template`): a star of the class, shifted by a radial velocity of about 60 km/s, on the
SDSS wavelength grid, with noise. Its labels follow from the class (TEMPLATE_LABELS):

| task | YES | NO |
|---|---|---|
| wd | WD, WD-HE, WDmagnetic, CarbonWD | A, B, F, O: the same lines, narrow |
| cv | CV | WD, WD-HE, A, B, O |
| cc | Carbon, Carbon_lines | K, M |
| gm | none in these files | M dwarfs of SDSS, M0V to M8 (strong Na I 8190); redrock's M mixes luminosities: not used |
| ss | no public template exists | |

Half of redrock's white dwarfs are helium ones (He I 5876, no Balmer lines). They are the class WD-HE, split off by the depth of Hβ, because
a model that was told to look for Balmer lines is not prepared for them. gm and ss cannot be graded with templates alone. Realisations of one
named star share a source object and so a split. The CV files hold no stars, only eigenspectra: each draw is a mix of them and counts as an
object, though all CVs made here look alike.
"""

from pathlib import Path

import numpy as np

HOT, COOL, DWARF = (("wd", "NO"), ("cv", "NO")), (("cc", "NO"),), (("cc", "NO"), ("gm", "NO"))
TEMPLATE_LABELS = {
    **dict.fromkeys(("STAR-WD", "STAR-WD-HE", "WD"), (("wd", "YES"), ("cv", "NO"))),
    "STAR-CV": (("cv", "YES"),),
    "STAR-F": (("wd", "NO"),),
    **dict.fromkeys(("WDmagnetic", "CarbonWD"), (("wd", "YES"),)),
    **dict.fromkeys(("Carbon", "Carbon_lines"), (("cc", "YES"),)),
    **dict.fromkeys(("STAR-A", "STAR-B", "A0", "A0p", "B6", "B9", "O", "OB"), HOT),
    **dict.fromkeys(("F2", "F5", "F9"), (("wd", "NO"),)),
    **dict.fromkeys(("STAR-K", "STAR-M", "K1", "K3", "K5", "K7"), COOL),
    **dict.fromkeys(("M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M0V", "M2V"), DWARF),
}
GRID = 10 ** np.arange(np.log10(3800.0), np.log10(9200.0), 1e-4)  # Å, the SDSS step of 69 km/s


def read_templates(path):
    """A template file -> {wavelength [n] Å rest frame, basis [k, n], stars [s, k] or None, names}; None for any other file.

    names: the class of each star, or [class of the file] without stars. redrock: HDU 0 BASIS_VECTORS on CRVAL1 + CDELT1 * i, HDU 1
    ARCHETYPE_COEFF where stars exist. SDSS: the rows of HDU 0 are the spectra NAME0, NAME1 ... on 10 ** (COEFF0 + COEFF1 * i), or
    eigenspectra with EIGEN0 ... of the class OBJECT.
    """
    from astropy.io import fits

    if Path(path).suffix.lower() in (".csv", ".npz"):
        return None
    try:
        with fits.open(path, memmap=False) as hdus:
            header, data = hdus[0].header, hdus[0].data
            if data is None or data.ndim != 2:
                return None
            pixels, basis, stars = np.arange(data.shape[1]), np.array(data, float), None
            if hdus[0].name == "BASIS_VECTORS":
                wavelength = header["CRVAL1"] + header["CDELT1"] * pixels
                wavelength = 10**wavelength if header.get("LOGLAM") else wavelength
                names = [f"{header.get('RRTYPE', '?')}-{header.get('RRSUBTYP', '?')}".upper()]
                if "ARCHETYPE_COEFF" in hdus:
                    stars = np.array(hdus["ARCHETYPE_COEFF"].data, float)
                    names *= len(stars)
                    if names[0] == "STAR-WD":
                        away = np.abs(wavelength - 4861)  # Å from Hβ
                        depth = 1 - stars @ basis[:, away < 4].mean(1) / (stars @ basis[:, (away > 120) & (away < 160)].mean(1))
                        names = np.where(depth > 0.1, "STAR-WD", "STAR-WD-HE").tolist()
            elif "COEFF0" in header and ("NAME0" in header or "EIGEN0" in header):
                wavelength = 10 ** (header["COEFF0"] + header["COEFF1"] * pixels)
                names = [str(header.get("OBJECT", "?")).strip().replace("_", "-")]
                if "NAME0" in header:
                    names, stars = [str(header.get(f"NAME{index}", "?")).strip() for index in range(len(basis))], np.eye(len(basis))
            else:
                return None
    except (OSError, KeyError, TypeError, ValueError):
        return None  # the reader of spectra says what is wrong with it
    return {"wavelength": wavelength, "basis": basis, "stars": stars, "names": names}


def rebin(wavelength, flux, edges):
    """The mean of a finely sampled spectrum in each bin; NaN outside its coverage and where it has no data (zeros at its ends)."""
    filled = np.flatnonzero(flux)
    if not len(filled):
        return np.full(len(edges) - 1, np.nan)
    wavelength, flux = wavelength[filled[0] : filled[-1] + 1], flux[filled[0] : filled[-1] + 1]
    integral = np.concatenate([[0], np.cumsum((flux[1:] + flux[:-1]) / 2 * np.diff(wavelength))])
    mean = np.diff(np.interp(edges, wavelength, integral)) / np.diff(edges)
    return np.where((edges[:-1] >= wavelength[0]) & (edges[1:] <= wavelength[-1]), mean, np.nan)


def observe(wavelength, flux, snr, rng, smooth, below_zero):
    """A template star as a survey would see it: (flux, ivar, redshift) on GRID with median flux 1, or None if the star is not physical.

    smooth: blur to R = 2000 (a Gaussian of 64 km/s, 0.92 pixels), for templates sharper than a survey. snr: per pixel at flux 1.
    below_zero: the share of negative pixels that is forgiven (a sum of basis vectors may dip below zero where no star does).
    """
    redshift = float(rng.normal(0, 2e-4))
    edges = 10 ** (np.append(np.log10(GRID), np.log10(GRID[-1]) + 1e-4) - 5e-5) / (1 + redshift)
    flux = rebin(wavelength, flux, edges)
    if smooth:
        kernel = np.exp(-0.5 * (np.arange(-4, 5) / 0.92) ** 2)
        flux = np.convolve(flux, kernel / kernel.sum(), mode="same")
        flux[:4] = flux[-4:] = np.nan  # the blur has run past the ends
    level = np.nanmedian(flux) if np.isfinite(flux).any() else 0
    if not level > 0 or np.mean(flux[np.isfinite(flux)] < 0) > below_zero:
        return None
    flux = flux / level
    sigma = np.sqrt(np.clip(flux, 0.2, None)) / snr  # photon noise, with a floor from the sky
    return flux + rng.normal(0, 1, flux.size) * sigma, 1 / sigma**2, redshift


def draw_templates(template, count, snr, rng):
    """Yield (class, record) for `count` observed stars of each labelled class: different stars where the file has them, else new noise."""
    names, basis, stars = template["names"], template["basis"], template["stars"]
    for kind in sorted(set(names) & set(TEMPLATE_LABELS)):
        members = [index for index, name in enumerate(names) if name == kind]
        if stars is None:
            chosen = ((f"{kind}-{number:05d}", np.append(1, rng.normal(0, 0.3, len(basis) - 1))) for number in range(20 * count))
        elif len(members) == 1:
            chosen = ((kind, stars[members[0]]) for _ in range(count))
        else:
            chosen = ((f"{kind}-{members[index]:05d}", stars[members[index]]) for index in rng.permutation(len(members)))
        made = 0
        for name, coefficients in chosen:
            flux = coefficients @ basis
            if stars is None and (flux[np.flatnonzero(basis[0])] <= 0).any():
                continue
            mixed = kind.startswith("STAR-") and stars is not None  # redrock's stars are sums of theory; the others were observed
            seen = observe(template["wavelength"], flux, snr, rng, smooth=mixed, below_zero=0.01 if mixed else 0.3)
            if seen:
                flux, ivar, redshift = seen
                yield (
                    kind,
                    {
                        "name": f"template-{name}",
                        "wavelength": GRID,
                        "flux": flux,
                        "ivar": ivar,
                        "redshift": redshift,
                        "layout": "template",
                    },
                )
                made += 1
            if made == count:
                break
        if made < count:
            print(f"note: {kind} has {made} usable stars, fewer than the {count} asked for")

"""Your own spectra as questions: FITS from SDSS/BOSS, LAMOST and DESI, CSV, NPZ, and the star templates of DESI and SDSS.

    python prepare_data.py bench --source files --spectra DIR --labels labels.csv      # graded: rl_train, dev, test
    python prepare_data.py bench --source files --spectra DIR --target wd              # vetting: labels unknown, all rows in dev

Layouts and their checks: spec_o3_readers. Star templates in DIR become semi-synthetic rows: spec_o3_templates.

labels.csv, one line per spectrum and question; file or source_name is needed:
| file | path below DIR, or just the name where that is unique |
| source_name | the object; for a DESI file with many targets the TARGETID. Without it the file's name is the object |
| task | cv, cc, gm, ss or wd; may be left out when --target is given |
| label | YES, NO, or empty for unknown |
| redshift | if wanted; believed as it is |
| split | if wanted: train, dev or test |
Objects without a `split` are drawn: dev and then test get round(n * val_fraction) each. Unknown labels go to dev. Spectra without a line
are left out and counted.

Redshift: of labels.csv, else of the file, else 0. A pipeline redshift beyond ±0.01 (3,000 km/s) is no star's; it would shift every line,
so it counts as 0.
"""

import csv
import functools
from collections import Counter

import numpy as np

from datafiles import check_unique, fresh_folder, split_sources, spread, stop, write_json
from tasks.spec_o3_data import TASKS, as_label, count_tasks, safe, sft_sources
from tasks.spec_o3_readers import check_spectrum, read_spectra
from tasks.spec_o3_templates import TEMPLATE_LABELS, draw_templates, read_templates

SUFFIXES = (".fits", ".fit", ".fits.gz", ".fit.gz", ".csv", ".npz")
SPLITS = {"train": "bench_rl_train", "dev": "bench_dev", "test": "bench_test"}
MAX_REDSHIFT = 0.01  # 3,000 km/s: five times the escape speed of the Galaxy
SMOKE_FILES, SMOKE_TEMPLATES = 8, 2


# ---------------------------------------------------------------- labels


def parse_label(cells, where, files, by_basename, target):
    """One line of labels.csv (dict of stripped cells) -> {file, source, task, label, redshift, split}."""
    name = cells.get("file", "").removeprefix("./")
    if name:
        found = [name] if name in files else by_basename.get(name, [])
        if len(found) != 1:
            stop(where, f"the file {name} " + (f"is ambiguous: {', '.join(found)}" if found else "is not below --spectra"))
        name = found[0]
    source, task, split = cells.get("source_name") or None, cells.get("task") or target, cells.get("split") or None
    if not name and not source:
        stop(where, "neither file nor source_name is given")
    if task not in TASKS:
        stop(where, f"the task is {task!r}, not one of {', '.join(TASKS)}")
    if split and split not in SPLITS:
        stop(where, f"the split is {split!r}, not train, dev or test")
    try:
        redshift = float(cells["redshift"]) if cells.get("redshift") else None
    except ValueError:
        redshift = np.nan
    if redshift is not None and not -0.9 < redshift < 20:
        stop(where, f"the redshift is {cells['redshift']!r}")
    if not name and source in files:  # a source_name that is a file's name
        name, source = source, None
    label = as_label(cells["label"], where) if cells["label"] else None
    return {"file": name or None, "source": source, "task": task, "label": label, "redshift": redshift, "split": split}


def read_labels(path, files, target):
    """labels.csv -> list of entries (parse_label, and "line"). files: {path below --spectra: Path}. With a target, only its lines."""
    by_basename, entries, first, lines = {}, [], {}, set()
    for name in files:
        by_basename.setdefault(name.rsplit("/", 1)[-1], []).append(name)
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.DictReader(file)
        columns = [str(column).strip().casefold() for column in reader.fieldnames or []]
        absent = [name for name in (() if target else ("task",)) + ("label",) if name not in columns]
        if absent or not {"file", "source_name"} & set(columns):
            found = ", ".join(columns) or "none"
            stop(path, f"expected columns file or source_name, task, label [, redshift] [, split]; found {found}")
        for cells in reader:
            where = f"{path} line {reader.line_num}"
            if None in cells or None in cells.values():
                stop(where, f"the number of cells differs from the {len(columns)} columns")
            cells = {key.strip().casefold(): value.strip() for key, value in cells.items()}
            entry = parse_label(cells, where, files, by_basename, target) | {"line": reader.line_num}
            what = entry["source"] or entry["file"]
            before = first.setdefault((what, entry["task"]), entry)
            if before["label"] != entry["label"] or (entry["file"], what, entry["task"]) in lines:
                told = f"{entry['label'] or 'unknown'} here, {before['label'] or 'unknown'} on line {before['line']}"
                stop(where, f"a second label of {what} for {entry['task']}: {told}")
            lines.add((entry["file"], what, entry["task"]))
            if not target or entry["task"] == target:
                entries.append(entry)
    if not entries:
        stop(path, "no labels" + (f" for {target}" if target else ""))
    return entries


# ---------------------------------------------------------------- rows


def ask(spectrum, questions, row_id, source, stem, folder, size, extra):
    """Write the npz and the full-range picture of one clean spectrum; one row per question. The only place that draws or words anything."""
    from tasks.spec_o3 import first_picture, question_messages

    picture, low, high = first_picture(spectrum["wavelength"], spectrum["flux"], spectrum["redshift"], size)
    image, arrays = f"images/{stem}.png", f"spectra/{stem}.npz"
    (folder / image).write_bytes(picture)
    kept = {key: spectrum[key] for key in ("wavelength", "flux", "ivar", "redshift") if spectrum[key] is not None}
    np.savez_compressed(folder / arrays, **kept)
    rows = []
    for question in questions:
        task = question["task"]
        row = {"id": f"{task}-{row_id}", "task": task, "source_name": source, "label": question["label"], "split": question["split"]}
        row |= {"messages": question_messages(task, image, low, high), "images": [image], "spectrum": arrays, "picture": size}
        rows.append(row | extra)
    return rows


def settle_redshift(found, questions, counts):
    """The redshift of the labels, else of the file if it can be a star's, else 0.0."""
    given = next((question["redshift"] for question in questions if question["redshift"] is not None), None)
    if given is not None:
        counts["redshift_from_labels"] += 1
        return given
    if found is not None and abs(found) <= MAX_REDSHIFT:
        counts["redshift_from_file"] += 1
        return found
    counts["redshift_none" if found is None or not abs(found) < 9000 else "redshift_not_a_star"] += 1  # LAMOST: -9999 is unknown
    return 0.0


def convert_templates(template, number, path, folder, options):
    rows, counts = [], Counter()
    rng = np.random.default_rng([options["seed"], *path.name.encode()])
    for index, (kind, spectrum) in enumerate(draw_templates(template, options["count"], options["snr"], rng)):
        wanted = [(task, label) for task, label in TEMPLATE_LABELS[kind] if options["target"] in (None, task)]
        if not wanted:
            continue
        clean, dropped = check_spectrum(spectrum, path)
        counts.update(spectra=1, pixels_dropped=dropped, layout_template=1)
        questions = [{"task": task, "label": label, "split": None} for task, label in wanted]
        extra = {"semi_synthetic": True, "snr": options["snr"], "template": kind}
        row_id, stem = f"{spectrum['name']}-{number}-{index}", f"{number:05d}-{index:05d}"
        rows += ask(clean, questions, row_id, spectrum["name"], stem, folder, options["picture"], extra)
    return {"rows": rows, "counts": counts, "used": set(), "skipped": []}


def convert_file(job, folder, options):
    """(number, name, path, label entries or None) -> {"rows", "counts", "used": lines of labels.csv, "skipped"}. Runs in a worker."""
    number, name, path, entries = job
    template = read_templates(path)
    if template:
        return convert_templates(template, number, path, folder, options)
    rows, counts, used, skipped = [], Counter(), set(), []
    try:
        spectra = read_spectra(path, name)
    except SystemExit as error:
        if not options["skip_bad"]:
            raise
        return {"rows": [], "counts": counts, "used": {e["line"] for e in entries or () if e["file"]}, "skipped": [str(error)]}
    many = spectra[0]["layout"] == "desi" if spectra else False
    for spectrum in spectra:
        target = spectrum["name"]
        if entries is None:
            questions = [{"task": options["target"], "label": None, "redshift": None, "split": None}]
        else:
            questions = [e for e in entries if e["source"] == target or e["file"] == name and (not many or e["source"] is None)]
            if many and any(e["source"] is None for e in questions):
                line = next(e["line"] for e in questions if e["source"] is None)
                stop(path, f"holds {len(spectra)} targets, so line {line} of the labels must name one in source_name, such as {target}")
            sources = {e["source"] for e in questions}
            if len(sources) > 1:
                stop(path, f"the labels give it several source names: {', '.join(map(str, sources))}")
        if not questions:
            counts["spectra_without_label"] += 1
            continue
        used |= {question.get("line") for question in questions}
        if many and entries is None and not np.any(spectrum["ivar"] > 0):
            counts["targets_without_data"] += 1  # a broken fibre among hundreds is no reason to stop a vetting run
            continue
        try:
            clean, dropped = check_spectrum(spectrum, f"{path} target {target}" if many else path)
        except SystemExit as error:
            if not options["skip_bad"]:
                raise
            skipped.append(str(error))
            continue
        counts.update({"spectra": 1, "pixels_dropped": dropped, f"layout_{clean['layout']}": 1})
        clean["redshift"] = settle_redshift(clean["redshift"], questions, counts)
        row_id, stem = f"{name}-{target}" if many else name, f"{number:05d}-{safe(target)}"
        rows += ask(clean, questions, row_id, questions[0].get("source") or target, stem, folder, options["picture"], {})
    return {"rows": rows, "counts": counts, "used": used, "skipped": skipped}


def assign_splits(rows, fraction, seed):
    """Take `split` off the rows and return {file: rows}. Labelled objects without one are drawn; an object is never in two splits."""
    fixed = {}
    for row in rows:
        split = row.pop("split") or ("dev" if row["label"] is None else None)
        if split and fixed.setdefault(row["source_name"], split) != split:
            stop(
                row["source_name"],
                f"is in the splits {fixed[row['source_name']]} and {split}; an object has one (unlabelled rows go to dev)",
            )
    free = {row["source_name"] for row in rows} - set(fixed)
    dev = split_sources(free, fraction, seed)
    test = split_sources(free - dev, min(1.0, fraction * len(free) / max(1, len(free - dev))), seed)
    place = fixed | {name: "dev" if name in dev else "test" if name in test else "train" for name in free}
    files = {file: [] for file in SPLITS.values()}
    for row in rows:
        files[SPLITS[place[row["source_name"]]]].append(row)
    return files


def find_files(root, labels):
    """{path below root: Path} of all spectra, sorted."""
    if root.is_file():
        return {root.name: root}
    paths = sorted(path for path in root.rglob("*") if path.name.lower().endswith(SUFFIXES) and path.is_file())
    paths = [path for path in paths if not (labels and path.samefile(labels)) and not path.name.startswith((".", "redrock-"))]
    if not paths:
        stop(root, f"no spectra (files ending in {', '.join(SUFFIXES)})")
    return {path.relative_to(root).as_posix(): path for path in paths}


def prepare_sft(args):
    """Spectra hold no demonstrations: nothing to do in `all`, an error if asked for."""
    if args.stage == "sft":
        stop("--source files", "spectra hold no demonstrations; take `sft` from --source hub or synthetic, and `bench` from files")
    print("sft: skipped, spectra hold no demonstrations")


def make_jobs(args):
    """One (number, name, path, label entries) per file, and all entries; entries is None for a vetting run."""
    if args.target and args.target not in TASKS:
        stop(f"--target {args.target}", f"expected one of {', '.join(TASKS)}")
    files = find_files(args.spectra, args.labels)
    entries = read_labels(args.labels, files, args.target) if args.labels else None
    by_file, loose = {}, [entry for entry in entries or () if not entry["file"]]  # loose: targets of a DESI coadd, named without their file
    for entry in entries or ():
        by_file.setdefault(entry["file"], []).append(entry)
    if args.smoke:
        files = dict(sorted(files.items(), key=lambda item: item[0] not in by_file)[:SMOKE_FILES])  # labelled ones first
    if entries is None and not args.target:
        for path in files.values():
            if not read_templates(path):
                stop(path, "which question? Give --target TASK to vet spectra without labels, or --labels CSV")
    jobs = [
        (number, name, path, None if entries is None else by_file.get(name, []) + loose)
        for number, (name, path) in enumerate(files.items())
    ]
    return jobs, entries


def prepare_bench(args):
    """bench_rl_train.jsonl, bench_dev.jsonl, bench_test.jsonl, bench_stats.json, images/ and spectra/ in <output>/spec_o3/rl."""
    from protocol import write_jsonl

    jobs, entries = make_jobs(args)
    count = min(args.template_count, SMOKE_TEMPLATES) if args.smoke else args.template_count
    options = {"target": args.target, "picture": args.picture_size, "skip_bad": args.skip_bad}
    options |= {"seed": args.seed, "snr": args.template_noise, "count": count}
    with fresh_folder(args.output / args.task / "rl", "bench_stats.json") as fresh:
        (fresh / "images").mkdir()
        (fresh / "spectra").mkdir()
        results = list(spread(functools.partial(convert_file, folder=fresh, options=options), jobs, args.workers, "spectra"))
        counts = sum((result["counts"] for result in results), Counter())
        rows, skipped = ([item for result in results for item in result[key]] for key in ("rows", "skipped"))
        used = set().union(*(result["used"] for result in results))
        left = [] if args.smoke else [e for e in entries or () if e["line"] not in used and (e["file"] or not skipped)]
        if left:
            stop(
                f"{args.labels} line {left[0]['line']}",
                f"no spectrum below {args.spectra} is called {left[0]['source']} ({len(left)} such lines)",
            )
        if not rows:
            stop(
                args.spectra, f"no rows came of {len(jobs)} files" + (f"; first problem: {skipped[0]}" if skipped else f": {dict(counts)}")
            )
        check_unique((row["spectrum"], row) for row in rows)
        parts = assign_splits(rows, args.val_fraction, args.seed)
        objects = {file: {row["source_name"] for row in part} for file, part in parts.items()}
        seen = sft_sources(args.output / args.task, required=False)
        stats = {
            "source": "files", "spectra": str(args.spectra), "labels": args.labels and str(args.labels), "target": args.target,
            "seed": args.seed, "val_fraction": args.val_fraction, "files": len(jobs),
            "rl_train": len(parts["bench_rl_train"]), "dev": len(parts["bench_dev"]), "test": len(parts["bench_test"]),
            "objects": {file: len(names) for file, names in objects.items()},
            "source_overlap": sum(len(objects[a] & objects[b]) for a in objects for b in objects if a < b),
            "sft_dev_source_overlap": None if seen is None else len(seen & objects["bench_dev"]),
            "sft_test_source_overlap": None if seen is None else len(seen & objects["bench_test"]),
            "semi_synthetic": sum(row.get("semi_synthetic", False) for row in rows),
            "counts": dict(sorted(counts.items())), "skipped": skipped,
        }  # fmt: skip
        stats |= {f"tasks_{file.removeprefix('bench_')}": count_tasks(part) for file, part in parts.items()}
        for file, part in parts.items():
            write_jsonl(fresh / f"{file}.jsonl", part)
        write_json(fresh / "bench_stats.json", stats)
    told = ", ".join(f"{stats[name]} {name}" for name in ("rl_train", "dev", "test"))
    print(f"bench: {told} from {counts['spectra']} spectra; {counts['pixels_dropped']} pixels dropped, "
          f"{counts['spectra_without_label']} spectra without label, {len(skipped)} skipped")  # fmt: skip

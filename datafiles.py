"""What prepare_data.py's tasks share: complete-or-nothing folders, splits by object, worker processes, one-line errors.

    with fresh_folder(args.output / args.task / "rl", "bench_stats.json") as folder:
        rows = list(spread(convert, paths, args.workers, "spectra"))
        write_jsonl(folder / "bench_dev.jsonl", rows)
        write_json(folder / "bench_stats.json", {"rows": len(rows)})
"""

import contextlib
import functools
import json
import os
import random
import shutil
from pathlib import Path


def stop(where, message):
    """End the stage with one line; `where` names the file and row."""
    raise SystemExit(f"{where}: {message}")


def need(record, path, where):
    """The value at a dotted path of nested dicts; stops if a part is missing or null."""
    for key in path.split("."):
        if not isinstance(record, dict) or record.get(key) is None:
            stop(where, f"no '{path}'" + (f" (there are {', '.join(map(str, record))})" if isinstance(record, dict) else ""))
        record = record[key]
    return record


def at_most(flag, asked, there):
    """`asked`, or what is there: then it is said."""
    if asked > there:
        print(f"{flag} {asked}: {there} are all there is, so {there} are written", flush=True)
    return min(asked, there)


def write_json(path, data):
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def fresh_folder(folder, marker):
    """A hidden folder beside `folder` to write into; it takes the place of `folder` only if the block ends without an exception.

    marker: the file that shows an existing `folder` to be this script's own; a folder with other content is never replaced.
    Remains of a killed run are cleared here, and a swap that was cut in half is undone.
    """
    folder = Path(folder).resolve()  # a link to another disk keeps pointing there
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        stop(folder.parent, "a file is in the way; give another --output")
    for left in folder.parent.glob(f".{folder.name}.*-[0-9]*"):
        if not is_alive(int(left.name.rsplit("-", 1)[1])):
            if ".old-" in left.name and not folder.exists():
                left.rename(folder)
            else:
                shutil.rmtree(left, ignore_errors=True)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) and not (folder / marker).exists()):
        stop(folder, f"is there already and holds no {marker}, so it was not made by this script; move it or give another --output")
    fresh, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("part", "old"))
    fresh.mkdir()
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def leave_with(parent):
    """Worker start-up: end when the parent is gone, or a killed run would leave its workers waiting forever."""
    import threading
    import time

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def spread(function, items, workers, what):
    """Yield function(item) for each item, in order, from `workers` processes. SystemExit of a worker ends the caller with the same line."""
    from tqdm import tqdm

    bar = functools.partial(tqdm, total=len(items), desc=what, disable=None)  # no bar unless on a terminal
    if min(workers, len(items)) < 2:
        yield from bar(map(function, items))
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    size, context = (
        max(1, min(32, len(items) // (4 * workers))),
        multiprocessing.get_context("spawn"),
    )  # forking a process with threads may hang
    with ProcessPoolExecutor(min(workers, len(items)), mp_context=context, initializer=leave_with, initargs=(os.getpid(),)) as pool:
        try:
            yield from bar(pool.map(function, items, chunksize=size))
        except BaseException as error:  # an error in one, Ctrl-C, SIGTERM: the others need not finish what they are at
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                stop(what, "a worker process died, perhaps for lack of memory; try fewer --workers")
            raise


def split_sources(sources, fraction, seed):
    """The held-out source objects: sorted, shuffled by `seed`, the first round(n * fraction)."""
    sources = sorted(set(sources))
    random.Random(seed).shuffle(sources)
    return set(sources[: round(len(sources) * fraction)])


def check_unique(rows):
    """rows: (place, row) pairs. Stops at the second row with an id."""
    seen = {}
    for where, row in rows:
        if row["id"] in seen:
            stop(where, f"the id {row['id']} was already used at {seen[row['id']]}")
        seen[row["id"]] = where

"""Aggregate more updates than memory holds: time, peak memory and reads of the disk, for each rule.

    python benchmarks/larger_than_memory.py [--gigabytes 30] [--limit 2] [--clients 500] [--directory DIR] [rule ...]

The script makes one .npy file per client (float32, a fifth of the clients lie), aggregates the files by each rule in a
process of its own, and deletes them. That process may not have more than --limit gigabytes of resident memory, files it
has mapped included: the system limits its heap, and a process that reaches the limit in another way is killed within 50 ms
and shown as killed. The files are dropped from the machine's cache before each rule, so that every read is one of the disk.

Two columns count reads, both as multiples of the size of the files: the bytes that fedhold reports as read from them, and
all bytes that the process has read, as the system counts them.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from fedhold import aggregate, open_updates, save_update

RULES = ("huber", "krum", "median", "trimmed_mean")
ASKS_F = ("krum", "trimmed_mean")
CHUNK = 2**22


def make(directory, clients, d):
    """Write one file per client; the first fifth of the clients lie."""
    rng = np.random.default_rng(0)
    directory.mkdir()
    for i in range(clients):
        with (directory / f"{i:05}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (d,)})
            for start in range(0, d, CHUNK):
                part = rng.standard_normal(min(CHUNK, d - start), dtype=np.float32)
                part += 3 if i < clients // 5 else 1
                file.write(part.data)
            file.flush()
            os.fsync(file.fileno())


def forget(directory):
    """Drop the files from the machine's cache."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def field(path, name):
    """A number from one of the lines `name: number` of a file in /proc."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def child(directory, out, rule, f, limit):
    """Aggregate under the limit, and print what that took as JSON: this runs in a process of its own."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    read, lock, before = 0, threading.Lock(), field("/proc/self/io", "rchar")

    def on_read(count):
        nonlocal read
        with lock:
            read += count

    began = time.perf_counter()
    result = aggregate(open_updates(directory, on_read=on_read), rule, **({"f": f} if rule in ASKS_F else {}))
    save_update(result.value, out)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "read": read,
                "rchar": field("/proc/self/io", "rchar") - before,
                "peak": 1024 * field("/proc/self/status", "VmHWM"),
                "off": float(np.abs(np.load(out, mmap_mode="r")[:1000] - 1).mean()),
            }
        )
    )


def watched(command, limit):
    """Run the command, and return the JSON it prints; None where it was killed at the limit, or failed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        try:
            if 1024 * field(f"/proc/{process.pid}/status", "VmRSS") > limit:
                process.kill()
        except (FileNotFoundError, ProcessLookupError):
            break  # The process has just ended.
        time.sleep(0.05)
    printed = process.communicate()[0]
    return json.loads(printed) if process.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", default=RULES, help=f"some of {', '.join(RULES)}; all unless given")
    parser.add_argument("--gigabytes", type=float, default=30.0)
    parser.add_argument("--limit", type=float, default=2.0, help="of resident memory, in gigabytes")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--directory", help="where the files go; the system's folder for temporary files unless given")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    clients, limit = options.clients, int(1e9 * options.limit)
    if options.child:
        directory, out = map(Path, options.child)
        child(directory, out, options.rules[0], clients // 5, limit)
        return
    d = int(1e9 * options.gigabytes) // (4 * clients)
    with tempfile.TemporaryDirectory(prefix="fedhold-", dir=options.directory) as place:
        free, needed = shutil.disk_usage(place).free, 4 * d * (clients + 1)
        if free < 1.1 * needed:
            sys.exit(
                f"{needed / 1e9:.1f} GB are needed in {place}, {free / 1e9:.1f} are free. Pass another --directory."
            )
        directory, out = Path(place) / "updates", Path(place) / "result.npy"
        began = time.perf_counter()
        make(directory, clients, d)
        size = sum(path.stat().st_size for path in directory.iterdir())
        print(
            f"{clients} files of {d:,} float32, {size / 1e9:.1f} GB, written in {time.perf_counter() - began:.0f} s; "
            f"limit {options.limit:g} GB"
        )
        print(
            "| rule | time | peak memory | reads of the files | of all bytes read | GB/s | mean error |\n"
            + "|---" * 7
            + "|"
        )
        for rule in options.rules:
            forget(directory)
            command = [sys.executable, __file__, rule, "--clients", str(clients), "--limit", str(options.limit)]
            found = watched([*command, "--child", str(directory), str(out)], limit)
            if found is None:
                print(f"| {rule} | killed at the limit, or failed | | | | | |", flush=True)
                continue
            print(
                f"| {rule} | {found['seconds']:.1f} s | {found['peak'] / 1e9:.2f} GB | {found['read'] / size:.2f} | "
                f"{found['rchar'] / size:.2f} | {found['read'] / found['seconds'] / 1e9:.2f} | {found['off']:.3f} |",
                flush=True,
            )
            out.unlink()


if __name__ == "__main__":
    main()

"""A federation with one thread for BLAS, as federate() has it, and with as many as BLAS takes by itself.

    python benchmarks/blas_threads.py [--rounds 5] [--repeat 3]

The threads of BLAS wait for each other by spinning: beside other work they cost time and gain nothing. The load of the machine
is printed, because it decides. Each is run in turn, and the best run of each counts.
"""

import argparse
import os
import time

import numpy as np

from fedhold.lab import federate, prepare

CASES = {
    "regression, 500 clients": ("synthesized", 500),
    "MNIST, 100 clients of 120 images": ("mnist(samples=12000)", 100),
    "MNIST, 10 clients of 6,000 images": ("mnist", 10),
}


def seconds(learn, scenario, m, rounds):
    """How long `rounds` rounds take by the clock, and how long they keep cores busy."""
    clock, busy = time.perf_counter(), time.process_time()
    liars = np.arange(m) < m // 5
    learn(scenario.task, scenario.shards, attack="sign_flip", byzantine=liars, rounds=rounds, step=0.02)
    return time.perf_counter() - clock, time.process_time() - busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.rounds} rounds of huber, best of {options.repeat}"
    )
    print("| | threads of BLAS | seconds | seconds of cores |")
    print("|---|---|---|---|")
    for title, (data, m) in CASES.items():
        scenario = prepare(data, "balanced", m, 0)
        ways = {"one": federate, "its own choice": federate.__wrapped__}  # the function without its limit
        found = {way: [] for way in ways}
        for _ in range(options.repeat):
            for way, learn in ways.items():
                found[way].append(seconds(learn, scenario, m, options.rounds))
        for way, times in found.items():
            clock, busy = np.min(times, axis=0)
            print(f"| {title} | {way} | {clock:.2f} | {busy:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""Our own rules, timed: as multiples of the mean of the same array, with the error of the rules that iterate.

In: a `Plan`, which may bring along rules of other libraries to be timed in turns with ours (benchmarks/peers does).
Out: `Results`, as JSON and as tables. Imports: whatever the library offers, the laboratory included.
"""

from bench.machine import Machine, busy, readable
from bench.plan import SHAPES, Peers, Plan, Results, measure_all, read_results, write_results
from bench.round import FASTER_TARGET, LIARS, FailedRound, RoundPeer, RoundTimes, TimedRound, timed
from bench.tables import (
    best_of,
    cell,
    first_call_cells,
    has_multiple,
    input_cells,
    libraries_of,
    print_results,
    remarks,
    rules_of,
    title,
)
from bench.timing import (
    OURS,
    OWN,
    OWN_STOPS,
    SLOPE_TARGET,
    YARDSTICK,
    Contender,
    Growth,
    Row,
    Shape,
    bucketed,
    last_slope,
)

__all__ = [
    "FASTER_TARGET",
    "LIARS",
    "OURS",
    "OWN",
    "OWN_STOPS",
    "SHAPES",
    "SLOPE_TARGET",
    "YARDSTICK",
    "Contender",
    "FailedRound",
    "Growth",
    "Machine",
    "Peers",
    "Plan",
    "Results",
    "RoundPeer",
    "RoundTimes",
    "Row",
    "Shape",
    "TimedRound",
    "best_of",
    "bucketed",
    "busy",
    "cell",
    "first_call_cells",
    "has_multiple",
    "input_cells",
    "last_slope",
    "libraries_of",
    "measure_all",
    "print_results",
    "read_results",
    "readable",
    "remarks",
    "rules_of",
    "timed",
    "title",
    "write_results",
]

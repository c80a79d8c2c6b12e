"""Standings of an arena: what each rule keeps of what averaging learns where nobody lies.

    kept = (metric - before) / (best - before)

with `before` the metric of the model before learning, or that of one answer for everything, the most frequent class, where that
is better; and `best` that of the plain mean at the end of the same rounds on the same data without an attack. 1 is as good as
averaging among honest clients, 0 is nothing learnt or worse; it is the same scale for accuracies and for errors of a
regression. Where a rule's bound refuses a cell, or a run fails, it keeps 0: a server that chose this rule would have nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhold.lab.arena import Arena, known_to
from fedhold.lab.experiment import Experiment
from fedhold.lab.outcomes import NO_ATTACK, curve_of, rounds_of, without_f
from fedhold.lab.results import Result, Store
from fedhold.report import Block, Entry, Facet, Folded, Heading, Matrix, Paragraph, Section, Table, page, write_tables
from fedhold.storage import write_whole

BACKDOOR = "backdoor"  # the metric of an attack that wants its trigger obeyed, and the accuracy unharmed
SAME = 0.01  # of what averaging learns: rules that differ by less share a rank. No user would choose by it.
NOISE = (
    2  # deviations over seeds: rules that differ by less share a rank, too. Another seed may turn their order around.
)
FLAT = 1e-6  # a reference that learns less than this says nothing about rules
USUAL, SKEWED = "without label skew", "label skew"
HOW = (
    "A number is the share that a rule keeps of what plain averaging learns where nobody lies: 1 is as good, 0 is nothing "
    "learnt, no more than the first model or one answer for everything is worth. The worst case is the least over all "
    "attacks, fractions of liars and data sets; refused cells count as 0. One cell decides it. 'worst attack' is the least "
    "over attacks, as a mean over data sets and fractions of liars: an adversary chooses the attack, but neither your data "
    "nor how many lie. Ranks are among all rules in each cell, 1 the best. Rules share a rank where they differ by less than "
    "0.01, or by less than twice the deviation over seeds: no user would choose by that, and another seed may turn it "
    "around. In brackets: the least and the largest over seeds. Rules marked 'told f' know the true number of liars, as no "
    "server does; without an attack they know it is 0. 'backdoor' is the mean success of that attack, 0 the best. An attack "
    "that no rule can be tried under, such as one on classes where there are none, is left out."
)
PLANTED = (
    "A backdoor leaves the accuracy alone, so it hardly shows among the numbers above. Its success is the share of the test "
    "inputs of other classes that the model takes for the liars' class once they bear the trigger."
)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, with the least and the largest."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Interval:
        """Of one number per seed; NaN where there are none."""
        found = [value for value in values if not np.isnan(value)]
        return cls(float(np.mean(found)), min(found), max(found)) if found else cls(*(3 * (float("nan"),)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})" if self.low < self.high else f"{self.mean:.2f}"


@dataclass(frozen=True)
class Place:
    """The standing of one rule.

    rule       without the number of liars that it is told
    knows      what it knows that a server does not know by itself, such as that number; "" for nothing
    worst      the least it keeps, over all cells
    attacked   the least it keeps over attacks, as a mean over data sets and fractions of liars
    rank       its mean rank over all cells
    mean       the mean of what it keeps
    unharmed   what it keeps without an attack, as a mean over data sets
    by_liars   the worst for each fraction of liars
    backdoor   the mean success of backdoors, 0 the best; NaN where none was tried
    refused    in how many cells, of all, its bound did not hold
    """

    rule: str
    knows: str
    worst: Interval
    attacked: Interval
    rank: Interval
    mean: Interval
    unharmed: Interval
    by_liars: tuple[float, ...]
    backdoor: Interval
    refused: tuple[int, int]


class Standings:
    """What is there of an arena.

    arena     what is compared
    store     where its results are
    failures  runs that failed, with their tracebacks; they count as nothing learnt
    """

    def __init__(self, arena: Arena, store: Store, failures: Mapping[Experiment, str] | None = None) -> None:
        self.arena, self.failures = arena, dict(failures or {})
        self.labels = [without_f(rule) for rule in arena.rules]
        shape = (len(arena.rules), len(arena.settings), len(arena.attacks) + 1, len(arena.epsilons), len(arena.seeds))
        self.kept: NDArray[np.float64] = np.full(shape, np.nan)  # NaN where a run is missing
        self.refused = np.zeros(shape, dtype=bool)
        self.backdoors: NDArray[np.float64] = np.full(shape, np.nan)  # NaN where an attack has no such success
        self.results: dict[tuple[int, ...], Result] = {}
        self.flat: list[str] = []
        for s in range(len(arena.settings)):
            for k in range(len(arena.seeds)):
                self._read(store, s, k)
        self.kept[:, self._inapplicable] = np.nan

    @property
    def _inapplicable(self) -> NDArray[np.bool_]:
        """(settings, attacks, epsilons, seeds) where an attack is not run, or was refused by every rule: it does not apply."""
        met = [
            [attack is None or self.arena.meets(setting, attack) for attack in (None, *self.arena.attacks)]
            for setting in self.arena.settings
        ]
        return np.asarray(self.refused.all(axis=0) | ~np.array(met)[:, :, None, None])

    def _read(self, store: Store, s: int, k: int) -> None:
        """Fill in the cells of one setting and seed; column 0 of the attacks is that without one."""
        arena = self.arena
        setting, seed = arena.settings[s], arena.seeds[k]
        reference = arena.experiment(setting, "mean", None, 0.0, seed)
        before, learnt = _unlearnt(store.find(arena.still(setting, seed))), store.find(reference)
        if before is None or learnt is None or (best := learnt.end) is None:
            return
        if abs(best - before) < FLAT:
            self.flat.append(f"{setting.label}, seed {seed}")
            return
        for r, rule in enumerate(arena.rules):
            for a, attack in enumerate((None, *arena.attacks)):
                for e, epsilon in enumerate(arena.epsilons):
                    if attack is None and e > 0:
                        self.kept[r, s, 0, e, k] = self.kept[r, s, 0, 0, k]
                        continue
                    run = arena.experiment(setting, rule, attack, 0.0 if attack is None else epsilon, seed)
                    result = store.find(run)
                    if result is None:
                        self.kept[r, s, a, e, k] = 0.0 if run in self.failures else np.nan
                        continue
                    self.results[r, s, a, e, k] = result
                    self.refused[r, s, a, e, k] = bool(result.infeasible)
                    if result.end is None:  # It diverged, or was refused.
                        self.kept[r, s, a, e, k] = 0.0
                    else:
                        self.kept[r, s, a, e, k] = np.clip((result.end - before) / (best - before), 0.0, 10.0)
                    success = (result.series.get(BACKDOOR) or [None])[-1]
                    self.backdoors[r, s, a, e, k] = np.nan if success is None else success

    @property
    def runs(self) -> int:
        """How many runs are there."""
        return len(self.results)

    @property
    def columns(self) -> int:
        """How many columns the whole arena has, without those in which an attack does not apply."""
        return int(self.complete.size - self._inapplicable.sum())

    @cached_property
    def complete(self) -> NDArray[np.bool_]:
        """(settings, attacks, epsilons, seeds) where every rule has been run: only there can rules be compared."""
        return np.logical_not(np.isnan(self.kept).any(axis=0))

    @cached_property
    def ranks(self) -> NDArray[np.float64]:
        """The rank of every rule in every cell. Two that differ by less than `noise` are as good as each other there.

        A rule's rank is 1, and 1 for each rule that is better, and 1/2 for each that is as good.
        """
        lead = self.kept[None] - self.kept[:, None]  # of the other rules over each rule
        better, equal = (lead > self.noise).sum(axis=1), (np.abs(lead) <= self.noise).sum(axis=1)
        ranks: NDArray[np.float64] = 1 + better + (equal - 1) / 2
        return ranks

    @cached_property
    def noise(self) -> NDArray[np.float64]:
        """By how much rules must differ in a cell to differ at all: (settings, attacks, epsilons, 1).

        What a seed does to all rules alike, changes no rank: the deviation over seeds is that from the mean of all rules. The
        median over rules stands for all of them, since those that an attack breaks in some seeds deviate by far more.
        """
        there = self.complete
        seeds = there.sum(axis=-1)  # those in which a cell is complete; one alone says nothing of chance
        own = np.where(there, self.kept, 0.0)
        own -= own.mean(axis=0)
        around = np.where(there, own - own.sum(axis=-1, keepdims=True) / np.maximum(seeds, 1)[..., None], 0.0)
        deviations = np.sqrt(np.square(around).sum(axis=-1) / np.maximum(seeds - 1, 1))
        return np.maximum(SAME, NOISE * np.where(seeds > 1, np.median(deviations, axis=0), 0.0))[..., None]

    def places(self, *, skewed: bool) -> list[Place]:
        """The rules by their worst case, the best first.

        skewed  judge by the settings with label skew; else by the others
        """
        chosen = [s for s, setting in enumerate(self.arena.settings) if setting.skewed == skewed]
        there = self.complete[chosen]
        if not there[:, 1:].any():
            return []
        places = [self._place(r, chosen, there) for r in range(len(self.arena.rules))]
        return sorted(places, key=lambda place: (-round(place.worst.mean, 3), place.rank.mean))

    def _place(self, r: int, chosen: list[int], there: NDArray[np.bool_]) -> Place:
        kept, planted, attacked = self.kept[r, chosen], self.backdoors[r, chosen][:, 1:], there[:, 1:]
        seeds = range(kept.shape[-1])

        def over_seeds(values: NDArray[np.float64], where: NDArray[np.bool_], worst: bool) -> Interval:
            found = [values[..., k][where[..., k]] for k in seeds]
            return Interval.of(float(one.min() if worst else one.mean()) for one in found if one.size)

        by_liars = [
            over_seeds(kept[:, 1:, e], attacked[:, :, e], worst=True).mean for e in range(len(self.arena.epsilons))
        ]
        under_worst, met = np.where(attacked, kept[:, 1:], np.inf).min(axis=1), np.asarray(attacked.any(axis=1))
        refused = self.refused[r, chosen][:, 1:][attacked]
        return Place(
            rule=self.labels[r],
            knows=known_to(self.arena.rules[r]),
            worst=over_seeds(kept[:, 1:], attacked, worst=True),
            attacked=over_seeds(under_worst, met, worst=False),
            rank=over_seeds(self.ranks[r, chosen][:, 1:], attacked, worst=False),
            mean=over_seeds(kept[:, 1:], attacked, worst=False),
            unharmed=over_seeds(kept[:, 0, 0], there[:, 0, 0], worst=False),
            by_liars=tuple(by_liars),
            backdoor=over_seeds(planted, attacked & ~np.isnan(planted), worst=False),
            refused=(int(refused.sum()), int(refused.size)),
        )

    def table(self, *, skewed: bool) -> Table:
        """The leaderboard, for pages and files."""
        liars = [f"worst at {epsilon:.0%}" for epsilon in self.arena.epsilons]
        header = (
            "rule",
            "knows",
            "worst case",
            "worst attack",
            "mean rank",
            "mean",
            NO_ATTACK,
            *liars,
            BACKDOOR,
            "refused",
        )
        rows = [
            (
                *(place.rule, place.knows),
                *map(str, (place.worst, place.attacked, place.rank, place.mean, place.unharmed)),
                *(f"{value:.2f}" for value in place.by_liars),
                "" if np.isnan(place.backdoor.mean) else str(place.backdoor),
                f"{place.refused[0] / place.refused[1]:.0%}" if place.refused[0] else "",
            )
            for place in self.places(skewed=skewed)
        ]
        return Table(f"leaderboard, {SKEWED if skewed else USUAL}", header, rows)

    def matrix(self) -> Matrix:
        """Rules x attacks, to be filtered by setting and fraction of liars, with the rounds behind."""
        arena = self.arena
        groups: dict[str, list[int]] = {USUAL: [], SKEWED: []}
        for s, setting in enumerate(arena.settings):
            groups[SKEWED if setting.skewed else USUAL].append(s)
        epsilons = [f"{epsilon:.0%} of clients lie" for epsilon in arena.epsilons]
        cells = [tuple(map(int, cell)) for cell in np.argwhere(~np.isnan(self.kept).all(axis=-1))]
        return Matrix(
            "Rules x attacks",
            [(label, known_to(rule)) for label, rule in zip(self.labels, arena.rules, strict=True)],
            [NO_ATTACK, *arena.attacks],
            [
                Facet("setting", [setting.label for setting in arena.settings], {k: v for k, v in groups.items() if v}),
                Facet("liars", epsilons, {}),
            ],
            self._axes,
            [self._entry(*cell) for cell in cells],
        )

    def _axis(self, s: int) -> tuple[str, list[int]]:
        """The metric of a setting, and the rounds in which it was measured."""
        there = (run for (_, at, *_), run in self.results.items() if at == s and not run.infeasible)
        run = next(there, None)
        return ("", []) if run is None else (run.metric, rounds_of([run], run.metric))

    def _runs(self, r: int, s: int, a: int, e: int) -> list[Result]:
        """The runs of a cell, one for each seed; without an attack all fractions of liars are the same run."""
        places = [(r, s, a, 0 if a == 0 else e, k) for k in range(len(self.arena.seeds))]
        return [self.results[place] for place in places if place in self.results]

    def _entry(self, r: int, s: int, a: int, e: int) -> Entry:
        values = self.kept[r, s, a, e]
        values = values[~np.isnan(values)]
        runs = self._runs(r, s, a, e)
        refused = any(run.infeasible for run in runs)
        ends = [end for run in runs if (end := run.end) is not None]
        return Entry(
            *(r, a, (s, e), float(values.mean()), float(values.min()), float(values.max())),
            mark="refused" if refused else "" if runs else "failed",
            end=float(np.mean(ends)) if ends and len(ends) == len(runs) else None,
            curve=() if refused else curve_of(runs, *self._axes[s]),
        )

    @cached_property
    def _axes(self) -> list[tuple[str, list[int]]]:
        return [self._axis(s) for s in range(len(self.arena.settings))]

    def reasons(self) -> Table:
        """Why cells were refused or failed: each reason once, with how often."""
        counts = Counter(
            (self.labels[r], "refused", run.infeasible) for (r, *_), run in self.results.items() if run.infeasible
        )
        counts.update((run.rule, "failed", told.strip().splitlines()[-1]) for run, told in self.failures.items())
        header = ("rule", "what", "why", "runs")
        return Table("refused", header, [(*key, n) for key, n in counts.items()], long=("why",))

    def planted(self) -> Table:
        """Backdoors: their success beside the accuracy, which they leave alone, as means over seeds."""
        rows = []
        for r, s, a, e in np.argwhere(~np.isnan(self.backdoors).all(axis=-1)).tolist():
            ends = [end for run in self._runs(r, s, a, e) if (end := run.end) is not None]
            where = (self.arena.settings[s].label, f"{self.arena.epsilons[e]:.0%}")
            success = float(np.nanmean(self.backdoors[r, s, a, e]))
            rows.append((self.labels[r], known_to(self.arena.rules[r]), *where, float(np.mean(ends)), success))
        return Table("backdoors", ("rule", "knows", "setting", "liars", "accuracy", "success"), rows)

    def numbers(self) -> Table:
        """Every cell: what is kept over seeds."""
        rows = []
        for entry in self.matrix().entries:
            s, e = entry.facets
            if entry.column == 0 and e > 0:
                continue
            setting, rule = self.arena.settings[s], self.arena.rules[entry.row]
            attack = (NO_ATTACK, *self.arena.attacks)[entry.column]
            where = (setting.data, setting.partition, attack, self.arena.epsilons[e] if entry.column else 0.0)
            ends = (entry.value, entry.low, entry.high, entry.end, entry.mark)
            rows.append((self.labels[entry.row], known_to(rule), *where, *ends))
        header = ("rule", "knows", "data", "partition", "attack", "epsilon", "kept", "low", "high", "metric", "mark")
        return Table("cells", header, rows)


def write_arena(directory: Path, standings: Standings, *, title: str = "The arena") -> Path:
    """Write arena.html and numbers/*.csv into `directory`; return the path of the page.

    standings  what came out
    title      of the page
    """
    arena, tables = standings.arena, [standings.table(skewed=skewed) for skewed in (False, True)]
    summary = (
        f"{len(arena.rules)} rules, {len(arena.attacks)} attacks, {len(arena.settings)} settings, {arena.m} clients; "
        f"{standings.runs} runs. {int(standings.complete.sum())} of {standings.columns} columns are "
        "complete, where rules can be compared."
    )
    boards: list[Block] = [Paragraph(HOW)]
    for table in tables:
        if table.rows:
            boards += [Heading(table.title.partition(", ")[2]), table]
    rows = [(s.data, s.partition, s.rounds, s.step, SKEWED if s.skewed else USUAL) for s in arena.settings]
    settings = Table("settings", ("data", "partition", "rounds", "step", "judged"), rows)
    planted, reasons = standings.planted(), standings.reasons()
    notes = [f"Not in the arena: {name}, which {why}." for name, why in arena.left_out]
    notes += [f"Averaging learns nothing there, so that nothing can be compared: {where}." for where in standings.flat]
    sections = [
        Section("Leaderboard", boards if len(boards) > 1 else []),
        Section("Matrix", [standings.matrix()] if standings.runs else []),
        Section(
            "Backdoors", [Paragraph(PLANTED), Folded(f"{len(planted.rows)} cells", [planted])] if planted.rows else []
        ),
        Section("Settings", [settings, *map(Paragraph, notes)]),
        Section("Refused and failed", [Folded(f"{len(reasons.rows)} reasons", [reasons])] if reasons.rows else []),
    ]
    path = Path(directory) / "arena.html"
    write_whole(path, page(title, summary, sections).encode())
    write_tables(
        path.parent / "numbers", [t for t in (*tables, settings, planted, reasons, standings.numbers()) if t.rows]
    )
    return path


def _unlearnt(still: Result | None) -> float | None:
    """What a model is worth that has learnt nothing: as it began, or with one answer for everything, if that is better.

    A first model may do worse than one answer does. Liars who make a model give that answer have left nothing of what clients
    know, and a rule must not seem to have kept some of it.
    """
    if still is None or still.end is None or still.constant is None:
        return None if still is None else still.end
    return max(still.end, still.constant)

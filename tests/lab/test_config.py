"""Configurations: every combination once, and an answer for every word nobody knows."""

import inspect
import re
from pathlib import Path

import pytest

from fedhold.lab import Experiment, load, write_start
from fedhold.lab.experiment import PARTS, RUN_OPTIONS

EXAMPLE = Path(__file__).parents[2] / "src" / "fedhold" / "lab" / "grid.toml"


def read(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return load(path)


def test_the_example_is_what_it_says():
    experiments = load(EXAMPLE)
    assert len(experiments) == len(set(experiments)) == 18
    assert {e.rule for e in experiments} == {"mean", "trimmed_mean(f=20)", "huber"}
    assert {(e.attack, e.epsilon) for e in experiments} == {
        *((None, 0.0), ("sign_flip", 0.2), ("trimmed_mean_attack", 0.2)),
    }


def test_what_the_example_leaves_as_comments_works_too(tmp_path):
    lines = EXAMPLE.read_text().splitlines()
    assignments = re.compile(r"# (\w+ = |\[\[)")
    found = read(tmp_path, "\n".join(line[2:] if assignments.match(line) else line for line in lines))
    told = {"mean", "huber", "trimmed_mean(f=10)", "trimmed_mean(f=30)"}
    assert {e.rule for e in found} == {"huber(threshold=by_samples(0, 2))", *told}
    loop = {"batch", "momentum", "local_steps", "participation", "certify"}
    assert loop <= {name for name, _ in found[0].options}


def test_one_experiment(tmp_path):
    assert read(tmp_path, 'data = "mnist"\nrule = "huber"') == [Experiment("mnist", "huber", None, 0.0, 0)]


def test_lists_make_a_grid(tmp_path):
    found = read(
        tmp_path,
        """
        data = ["synthesized", "heterogeneous"]
        rule = ["mean", "krum(f={f})"]
        attack = ["sign_flip", "ipm"]
        epsilon = [0.1, 0.2]
        seeds = [3, 5]
        m = [50, 100]
        partition = ["balanced", "random_cuts"]
        rounds = 10
        step = [0.1, 0.2]
        [options]
        momentum = [0, 0.9]
        batch = 5
        """,
    )
    assert len(found) == len(set(found)) == 2**9
    assert (
        Experiment(
            *("heterogeneous", "krum(f=10)", "ipm", 0.1, 5, 100, "random_cuts", 10, 0.2),
            options=(("momentum", 0.9), ("batch", 5)),
        )
        in found
    )
    assert all(e.rule in ("mean", f"krum(f={e.liars})") for e in found)


def test_hyperparameters_are_swept_by_lists(tmp_path):
    found = read(
        tmp_path,
        """
        data = "synthesized"
        rule = ["mean", "krum(f={f})"]
        attack = ["none", "ipm"]
        epsilon = 0.2
        f_told = [2, 4, 8]
        m = 20
        step = [0.1, 0.25]
        [options]
        momentum = [0, 0.9]
        """,
    )
    assert all(e.liars == (4 if e.attack else 0) for e in found)  # what rules are told changes nobody who lies
    settings = {(e.attack, e.step, dict(e.options)["momentum"]) for e in found}
    assert settings == {(attack, step, beta) for attack in (None, "ipm") for step in (0.1, 0.25) for beta in (0, 0.9)}
    for one in settings:
        rules = [e.rule for e in found if (e.attack, e.step, dict(e.options)["momentum"]) == one]
        assert rules == ["mean", "krum(f=2)", "krum(f=4)", "krum(f=8)"]  # a rule without {f} is run once


def test_f_told_may_be_for_one_grid_of_several(tmp_path):
    grids = '[[grid]]\nrule = "huber"\n[[grid]]\nrule = "median_of_means(f={f})"'
    found = read(tmp_path, 'data = "synthesized"\nf_told = 3\n' + grids)
    assert [e.rule for e in found] == ["huber", "median_of_means(f=3)"]


def test_no_attack_has_no_liars_and_is_run_once(tmp_path):
    found = read(
        tmp_path, 'data = "synthesized"\nrule = "mean"\nattack = ["none", "ipm"]\nepsilon = [0.1, 0.2]\nseeds = 2'
    )
    assert sorted((e.attack or "none", e.epsilon, e.seed) for e in found) == [
        *(("ipm", epsilon, seed) for epsilon in (0.1, 0.2) for seed in (0, 1)),
        *(("none", 0.0, seed) for seed in (0, 1)),
    ]


def test_grids_share_what_is_outside(tmp_path):
    found = read(
        tmp_path,
        """
        data = "synthesized"
        rule = ["mean", "huber"]
        epsilon = 0.2
        [options]
        batch = 5
        [[grid]]
        attack = "ipm"
        [[grid]]
        attack = "huber_attack(threshold=by_samples(0, 2))"
        rule = "median"
        """,
    )
    assert found == [
        *(Experiment("synthesized", rule, "ipm", 0.2, 0, options=(("batch", 5),)) for rule in ("mean", "huber")),
        Experiment(
            "synthesized", "median", "huber_attack(threshold=by_samples(0, 2))", 0.2, 0, options=(("batch", 5),)
        ),
    ]


def test_parameters_stand_behind_the_names_of_their_parts(tmp_path):
    new = read(
        tmp_path,
        'data = "mnist(hidden=64)"\nrule = "mean"\nattack = "alie(z=1.5)"\nepsilon = 0.2\npartition = "dirichlet(alpha=0.1)"',
    )
    (one,) = new
    assert (one.data, one.attack, one.partition) == ("mnist(hidden=64)", "alie(z=1.5)", "dirichlet(alpha=0.1)")


def test_no_liars_is_no_attack_or_an_error(tmp_path):
    found = read(tmp_path, GOOD + 'attack = ["ipm", "alie"]\nepsilon = [0, 0.2]\nm = 20')
    assert [(e.attack, e.epsilon) for e in found] == [(None, 0.0), ("ipm", 0.2), ("alie", 0.2)]
    with pytest.raises(
        ValueError, match=r"ipm needs floor\(epsilon \* m\) >= 1; met epsilon = 0.01, m = 20. Let at least one"
    ):
        read(tmp_path, GOOD + 'attack = "ipm"\nepsilon = 0.01\nm = 20')


def test_what_is_no_file_of_text_is_an_error_of_one_line(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00data")
    (tmp_path / "cut.toml").write_text('data = "mni')
    for path, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "bytes.toml", "no text"),
        (tmp_path / "cut.toml", "not TOML"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_the_file_to_start_from_is_in_the_package_and_never_overwrites(tmp_path):
    write_start(tmp_path / "grid.toml")
    assert load(tmp_path / "grid.toml") == load(EXAMPLE)
    with pytest.raises(ValueError, match="is there already"):
        write_start(tmp_path / "grid.toml")


GOOD = 'data = "synthesized"\nrule = "mean"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = "synthesized"', "it must say rule"),
        (GOOD + "epsilom = 0.2", "unknown key 'epsilom'. Did you mean 'epsilon'?"),
        (GOOD + "momentum = 0.9", "Options of the run go under [options]"),
        (GOOD + 'attack = "ipm"', "an attack needs epsilon"),
        (GOOD + 'attack = "imp"\nepsilon = 0.2', "unknown attack 'imp'. Did you mean 'ipm'?"),
        (GOOD + 'partition = "dirichlt"', "unknown partition 'dirichlt'. Did you mean 'dirichlet'?"),
        (
            GOOD + 'partition = "by_class(shard=2)"',
            "by_class: unknown parameter 'shard'. Did you mean",
        ),
        (GOOD + 'partition = "by_class(2)"', "parameters go by name"),
        (GOOD + "[options]\nbacth = 3", "unknown option 'bacth'. Did you mean 'batch'?"),
        (GOOD + "[options]\nsamples = 5", 'go behind their names, as in "mnist(hidden=64)"'),
        (GOOD + "rounds = 1.5", "rounds must be an integer"),
        (GOOD + 'step = "fast"', "step must be a number"),
        (GOOD + "m = [[1]]", "m must be one value or a list of values"),
        (GOOD + "seeds = []", "seeds must be one value or a list of values"),
        (GOOD + "seeds = 0", "seeds must be at least 1"),
        (
            GOOD + "step = []",
            "step must be one value or a list of values, got []. Write at least one, or leave step out",
        ),
        (GOOD + "step = [0.1, -1]", "step must be a number above 0 and finite, got -1"),
        (GOOD + "[options]\nmomentum = []", "got []. Write at least one, or leave momentum out"),
        (GOOD + "[options]\nmomentum = [0, 1]", "needs 0 <= momentum < 1; met momentum = 1. Usual is 0.9"),
        (GOOD + "f_told = [2, 4]", 'no rule has {f}, as in rule = "trimmed_mean(f={f})". Leave it out'),
        ('data = "mnist"\nrule = "krum(f={f})"\nf_told = []', "Write at least one, or leave f_told out"),
        ('data = "mnist"\nrule = "krum(f={f})"\nf_told = [2, 1.5]', "f_told must be an integer, got 1.5"),
        ('data = "mnist"\nrule = "krum(f={f})"\nf_told = -1', "f_told must be at least 0, got -1"),
        (
            'data = "femnist"\nrule = "mean"\npartition = "dirichlet(alpha=0.1)"',
            "clients of its own, by writer, and dirichlet",
        ),
        ('data = "synthesised"\nrule = "mean"', "unknown data 'synthesised'. Did you mean 'synthesized'?"),
        ('data = "mnist"\nrule = "trimed_mean(f=1)"', "unknown rule 'trimed_mean'. Did you mean 'trimmed_mean'?"),
        ('data = "mnist"\nrule = 3', "rule must be text in quotes"),
        (GOOD + "options = 3", "write options as a table [options]"),
        (GOOD + "grid = 3", "write each grid as a table [[grid]]"),
        ("data = ", "is not TOML"),
        ("data = " + "[" * 5000, "is not TOML"),
        (GOOD + "seeds = 1000000000000", "at most 1000000 experiments"),
        (GOOD + "seeds = 2000\nstep = " + str([0.1] * 2000), "at most 1000000 experiments; met experiments = 4000000"),
        ('data = "mnist"\nrule = "krum(f=1.5)"', "f must be an integer, got 1.5"),
        ('data = "mnist"\nrule = "rsa(penalty=x)"', "cannot read 'x'. Write a number"),
        ('data = "mnist"\nrule = "rsa(penalty=' + "-" * 5000 + '1)"', "cannot read the rule"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"grid\.toml") as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


WHOLE = "data = '{data}'\nrule = '{rule}'\nattack = '{attack}'\nepsilon = 0.2\npartition = '{partition}'\n[options]\n"
NUMBERS = ['"many"', '""', "1979-05-27", "07:32:00"]
FRACTIONS = ["1.5", "nan", "inf"]
OPTIONS = {
    ("synthesized", "huber", "sign_flip", "balanced"): {
        "batch": [*NUMBERS, *FRACTIONS, "0", "-1"],
        "local_steps": [*NUMBERS, *FRACTIONS, "0", "-1"],
        "evaluate_every": [*NUMBERS, *FRACTIONS, "0", "-1"],
        "certify": [*NUMBERS, *FRACTIONS, "-1"],
        "momentum": [*NUMBERS, "nan", "1.0", "-0.1"],
        "participation": [*NUMBERS, "nan", "0", "1.1", "-1"],
        "radius": [*NUMBERS, "nan", "0", "-1"],
        "sample_cap": [*NUMBERS, "nan", "0.5", "-1"],
        "data samples": [*NUMBERS, *FRACTIONS, "-1"],
        "data d": [*NUMBERS, *FRACTIONS, "-1"],
        "keep_weights": [*NUMBERS, *FRACTIONS, "2"],
        "root": [*NUMBERS, *FRACTIONS, "0", "-1"],
        "guard": [*NUMBERS, *FRACTIONS, "0", "-1"],
        "memory": [*NUMBERS, "2"],
    },
    ("heterogeneous", "huber", "sign_flip", "balanced"): {"data variance": NUMBERS, "data factor": NUMBERS},
    ("mnist", "huber", "sign_flip", "dirichlet"): {"data hidden": [*NUMBERS, *FRACTIONS], "partition alpha": NUMBERS},
    ("mnist", "huber", "sign_flip", "by_class"): {"partition shards": [*NUMBERS, *FRACTIONS]},
    ("synthesized", "rsa(penalty=1)", "sign_flip", "balanced"): {"batch": [*NUMBERS, "0"], "evaluate_every": ["0"]},
    ("synthesized", "huber", "krum_attack", "balanced"): {
        "attack start": NUMBERS,
        "attack stop": NUMBERS,
        "attack search": ["1", '"longest"'],
        "attack knows": ["1", '"nothing"'],
    },
    ("synthesized", "huber", "huber_attack", "balanced"): {"attack threshold": ['"far"', "nan", "-1", "1979-05-27"]},
    ("synthesized", "huber", "alie", "balanced"): {"attack z": NUMBERS},
    ("synthesized", "huber", "ipm", "balanced"): {"attack scale": NUMBERS},
    ("synthesized", "huber", "mimic", "balanced"): {"attack client": [*NUMBERS, *FRACTIONS, "-1"]},
    ("synthesized", "huber", "gaussian", "balanced"): {"attack deviation": NUMBERS},
    ("synthesized", "huber", "non_finite", "balanced"): {"attack value": NUMBERS},
    ("synthesized", "huber", "inflated_samples", "balanced"): {"attack factor": NUMBERS},
    ("synthesized", "huber", "drift", "balanced"): {"attack length": NUMBERS, "attack seed": [*NUMBERS, *FRACTIONS]},
    ("synthesized", "huber", "worst_case", "balanced"): {
        "attack restarts": [*NUMBERS, *FRACTIONS],
        "attack evaluations": [*NUMBERS, *FRACTIONS],
    },
    ("mnist", "huber", "backdoor", "balanced"): {
        "attack target": [*NUMBERS, *FRACTIONS],
        "attack columns": [*NUMBERS, *FRACTIONS],
        "attack share": NUMBERS,
        "data tests": [*NUMBERS, *FRACTIONS],
    },
}


@pytest.mark.parametrize(
    ("world", "name", "value"),
    [
        (world, name, value)
        for world, names in OPTIONS.items()
        for name, values in names.items()
        for value in [
            *values,
            "{ a = 1 }",
            *([] if name == "attack threshold" else ["[[1]]"]),
        ]  # T may be one per client
    ],
)
def test_an_option_that_no_run_could_work_with_is_refused_when_the_file_is_read(tmp_path, world, name, value):
    """Not hours later, and from a worker process."""
    parts = dict(zip(("data", "rule", "attack", "partition"), world, strict=True))
    part, _, parameter = name.rpartition(" ")
    if part:
        parts[part] += f"({parameter}={value})"
    with pytest.raises(ValueError, match=r"grid\.toml") as caught:
        read(tmp_path, WHOLE.format(**parts) + ("" if part else f"{name} = {value}"))
    assert parameter in str(caught.value)


def test_every_option_is_in_this_table():
    there = {*RUN_OPTIONS, "attack threshold"}
    for part in ("data", "attack", "partition"):
        for function in PARTS[part].values():
            given = inspect.signature(function).parameters.values()
            there |= {f"{part} {one.name}" for one in given if one.kind is one.KEYWORD_ONLY}
    assert {name for names in OPTIONS.values() for name in names} == there


def test_a_directory_where_a_file_is_meant(tmp_path):
    with pytest.raises(ValueError, match=r"is a directory, not a configuration\. Name a TOML file in it"):
        load(tmp_path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"does not exist. `fedhold init` writes one to start from"):
        load(tmp_path / "nowhere.toml")

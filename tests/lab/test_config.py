"""Configurations: every combination once, and an answer for every word nobody knows."""

import re
from pathlib import Path

import pytest

from fedhold.lab import Experiment, load

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
    assert {e.rule for e in found} == {"huber(threshold=by_samples(0, 2))"}
    assert {"batch", "local_steps", "participation", "certify"} <= {name for name, _ in found[0].options}


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
        attack = "huber_attack"
        rule = "median"
        options = { attack_threshold = "by_samples(0, 2)" }
        """,
    )
    assert found == [
        *(Experiment("synthesized", rule, "ipm", 0.2, 0, options=(("batch", 5),)) for rule in ("mean", "huber")),
        Experiment(
            *("synthesized", "median", "huber_attack", 0.2, 0),
            options=(("batch", 5), ("attack_threshold", "by_samples(0, 2)")),
        ),
    ]


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
        (GOOD + "[options]\nbacth = 3", "unknown option 'bacth'. Did you mean 'batch'?"),
        (GOOD + "rounds = 1.5", "rounds must be an integer"),
        (GOOD + 'step = "fast"', "step must be a number"),
        (GOOD + "m = [[1]]", "m must be one value or a list of values"),
        (GOOD + "seeds = []", "seeds must be one value or a list of values"),
        (GOOD + "seeds = 0", "seeds must be at least 1"),
        ('data = "synthesised"\nrule = "mean"', "unknown data 'synthesised'. Did you mean 'synthesized'?"),
        ('data = "mnist"\nrule = "trimed_mean(f=1)"', "unknown rule 'trimed_mean'. Did you mean 'trimmed_mean'?"),
        ('data = "mnist"\nrule = 3', "rule must be text in quotes"),
        (GOOD + "options = 3", "write options as a table [options]"),
        (GOOD + "grid = 3", "write each grid as a table [[grid]]"),
        ("data = ", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"grid\.toml") as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"does not exist. `fedhold init` writes one to start from"):
        load(tmp_path / "nowhere.toml")

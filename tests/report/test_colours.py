"""Colours: every rule has a style of its own, the same in every page and figure."""

from fedhold.report.colours import COLOURS, DARK_COLOURS, DASHES, FIRST, rule_style, rule_styles
from fedhold.spec import RULES


def test_every_rule_has_a_style_of_its_own():
    assert len({rule_style(name) for name in RULES}) == len(RULES)
    assert set(FIRST) <= set(RULES)
    assert all(rule_style(name).dashes == "" for name in FIRST)
    assert len(COLOURS) == len(DARK_COLOURS)


def test_parameters_and_mixings_do_not_change_it():
    for spec in ("krum(f=8)", "bucketing(size=2) | krum(f=8)", "krum, told f", " krum "):
        assert rule_style(spec) == rule_style("krum")


def test_a_rule_of_ones_own_has_a_style_that_no_other_rule_has():
    mine = rule_style("parts:votes(k=3)")
    assert mine == rule_style("parts:votes") == rule_style("screen | parts:votes(k=4)")
    assert mine.dashes == DASHES[-1]
    assert not [name for name in RULES if rule_style(name).dashes == DASHES[-1]]


def test_variants_differ_by_their_markers():
    styles = rule_styles({"a": "huber", "b": "median", "c": "huber(threshold=1)", "d": "screen | huber"})
    assert [style.marker for style in styles.values()] == [0, 0, 1, 2]
    assert {(styles[k].colour, styles[k].dashes) for k in "acd"} == {
        (rule_style("huber").colour, rule_style("huber").dashes)
    }

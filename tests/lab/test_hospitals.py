"""Heart disease by hospital: files in the true format, what is missing in them, and clients within hospitals."""

import hashlib

import numpy as np
import pytest

from fedhold.lab import DataError, heart_disease, hospitals, prepare, scenarios

ROWS = {"cleveland": 60, "hungarian": 50, "switzerland": 20, "va": 30}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Four small files as the originals are written, with question marks and a cholesterol of 0 for what nobody measured."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "heart-disease"
    folder.mkdir()
    for hospital, count in ROWS.items():
        lines = []
        for i in range(count):
            chol = "0" if hospital == "switzerland" else str(rng.integers(150, 350))
            ca = "?" if i % 3 else str(rng.integers(0, 4))
            words = [
                rng.integers(30, 75),
                i % 2,
                1 + i % 4,
                rng.integers(95, 200),
                chol,
                i % 2,
                i % 3,
                rng.integers(80, 190),
            ]
            lines.append(",".join(map(str, [*words, i % 2, "1.5", 1 + i % 3, ca, "?", i % 3])))
        data = "\n".join(lines).encode()
        (folder / f"processed.{hospital}.data").write_bytes(data)
        monkeypatch.setitem(hospitals.MD5, hospital, hashlib.md5(data, usedforsecurity=False).hexdigest())
    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path))
    scenarios._prepare.cache_clear()
    yield folder
    scenarios._prepare.cache_clear()


@pytest.mark.usefixtures("files")
def test_every_patient_is_trained_on_or_tested_on():
    wards = heart_disease(np.random.default_rng(0))
    assert [ward.hospital for ward in wards] == list(ROWS)
    for ward in wards:
        assert len(ward.train) + len(ward.test) == ROWS[ward.hospital]
        assert len(ward.test) == pytest.approx(0.3 * ROWS[ward.hospital], abs=1)
        assert set(ward.train.targets.tolist()) == {0, 1}
        for half in (ward.train, ward.test):
            assert np.isfinite(half.inputs).all()
            assert abs(half.inputs).max() <= 4
    switzerland = wards[2].train.inputs
    assert (switzerland[:, 2] == 0).all()  # nobody's cholesterol was measured: the centre,
    assert (switzerland[:, -9] == 1).any()  # and a column of its own says so


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("partition", ["balanced", "random_cuts", "dirichlet(alpha=0.1)"])
def test_a_client_has_patients_of_one_hospital(partition):
    scenario = prepare("heart_disease(hidden=4)", partition, 12, 0)
    assert scenario.shards.m == 12
    assert scenario.shards.counts.sum() == sum(len(ward.train) for ward in heart_disease(np.random.default_rng(0)))
    switzerland = [(scenario.shards.client(i).inputs[:, 2] == 0).all() for i in range(12)]
    assert 1 <= sum(switzerland) <= 2


@pytest.mark.usefixtures("files")
def test_too_few_clients_is_refused():
    with pytest.raises(ValueError, match=r"heart_disease needs m >= 4, a client in every hospital; met m = 3"):
        prepare("heart_disease", "balanced", 3, 0)


def test_clients_go_where_the_patients_are():
    assert scenarios._apportioned([212, 206, 86, 140], 25) == [9, 8, 3, 5]
    assert scenarios._apportioned([1000, 1, 1, 1], 4) == [1, 1, 1, 1]


def test_files_that_are_not_there_or_damaged(files, monkeypatch):
    path = files / "processed.va.data"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"processed.va.data has MD5 .* Put the original in its place"):
        heart_disease(np.random.default_rng(0))
    path.unlink()
    with pytest.raises(
        DataError, match=r"there is no file .*heart-disease/processed\.va\.data\. Put the original there"
    ):
        heart_disease(np.random.default_rng(0))
    monkeypatch.delenv("FEDHOLD_DATA")
    with pytest.raises(DataError, match="FEDHOLD_DATA, which is not set"):
        heart_disease(np.random.default_rng(0))

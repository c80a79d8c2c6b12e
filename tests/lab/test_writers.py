"""FEMNIST by writer: files as LEAF writes them, and files that are broken in every way that we could think of."""

import json

import numpy as np
import pytest

from fedhold.lab import DataError, Experiment, femnist, prepare, run, scenarios, writers

COUNTS = {"f0000_14": 6, "f0001_41": 9, "f0002_00": 4, "f0003_42": 7}


def leaf(written):
    """A file of LEAF: pixels that were bytes, divided by 255 and written by json."""
    return json.dumps(
        {
            "users": list(written),
            "num_samples": [len(labels) for _, labels in written.values()],
            "user_data": {
                name: {"x": (pixels / 255).tolist(), "y": labels.tolist()} for name, (pixels, labels) in written.items()
            },
        }
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two files of two writers each, to train and to test on, and what is in them."""
    rng, held = np.random.default_rng(0), {}
    for half, share in (("train", 1), ("test", 2)):
        (tmp_path / "femnist" / half).mkdir(parents=True)
        for k, names in enumerate((("f0000_14", "f0001_41"), ("f0002_00", "f0003_42"))):
            written = {
                name: (rng.integers(0, 256, (COUNTS[name] // share, 784)), rng.integers(0, 62, COUNTS[name] // share))
                for name in names
            }
            held[half] = held.get(half, {}) | written
            path = tmp_path / "femnist" / half / f"all_data_{k}_niid_05_keep_0_{half}_9.json"
            path.write_text(leaf(written))
    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path))
    scenarios._prepare.cache_clear()
    yield tmp_path / "femnist", held
    scenarios._prepare.cache_clear()


def first(files):
    return files[0] / "train" / "all_data_0_niid_05_keep_0_train_9.json"


def test_writers_come_with_what_they_wrote(files):
    found = femnist(4)
    assert [one.name for one in found] == list(COUNTS)
    for one in found:
        for half, samples in (("train", one.train), ("test", one.test)):
            pixels, labels = files[1][half][one.name]
            np.testing.assert_allclose(samples.inputs, pixels / 255, rtol=1e-7)
            np.testing.assert_array_equal(samples.targets, labels)
            assert (samples.inputs.dtype, samples.targets.dtype) == (np.float32, np.int64)


def test_no_more_files_are_read_than_are_needed(files):
    for half in ("train", "test"):
        (files[0] / half / f"all_data_1_niid_05_keep_0_{half}_9.json").write_text("broken")
    assert [one.name for one in femnist(2)] == ["f0000_14", "f0001_41"]
    with pytest.raises(DataError, match="all_data_1"):
        femnist(3)


def test_every_client_is_a_writer(files):
    scenario = prepare("femnist(hidden=3)", "balanced", 3, 0)
    assert scenario.shards.counts.tolist() == [6, 9, 4]
    np.testing.assert_array_equal(scenario.shards.client(1).targets, files[1]["train"]["f0001_41"][1])
    assert len(scenario.task.samples) == 3 + 4 + 2
    assert scenario.task.d == 785 * 3 + 4 * 62  # whatever classes these three have written


@pytest.mark.usefixtures("files")
def test_in_an_experiment():
    experiment = Experiment("femnist", "median", "sign_flip", 0.25, 0, m=4, rounds=2, model="mlp(hidden=4)")
    assert run(experiment).metric == "accuracy"
    assert "4 clients, by writer, mlp(hidden=4)" in str(experiment)
    with pytest.raises(
        ValueError, match=r"clients of its own, by writer, and dirichlet\(alpha=0.1\) would do nothing\. Leave"
    ):
        Experiment("femnist", "median", None, 0, 0, partition="dirichlet(alpha=0.1)")


@pytest.mark.usefixtures("files")
def test_more_clients_than_writers_is_infeasible():
    result = run(Experiment("femnist", "median", None, 0.0, 0, m=5, rounds=1))
    assert result.infeasible == (
        "femnist needs m <= 4, the writers there are; met m = 5. Use fewer clients, or let LEAF sample more writers."
    )


def test_a_writer_without_samples_to_test_on(files):
    told = json.loads((path := files[0] / "test" / "all_data_0_niid_05_keep_0_test_9.json").read_text())
    told = {"users": told["users"][1:], "num_samples": told["num_samples"][1:], "user_data": told["user_data"]}
    del told["user_data"]["f0000_14"]
    path.write_text(json.dumps(told))
    assert [len(one.test) for one in femnist(4)] == [0, 4, 2, 3]
    path.write_text(leaf({"somebody": (np.zeros((1, 784)), np.zeros(1, int))}))
    with pytest.raises(DataError, match=r"has no samples of the writers .* preprocess\.sh does it with -t sample"):
        femnist(2)


ONE = {"x": [[0.5] * 784], "y": [3]}


def told(data=ONE, users=("w",), counts=(1,)):
    return json.dumps({"users": list(users), "num_samples": list(counts), "user_data": {"w": data}})


@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "empty": ("", "Expecting value"),
        "cut": (told()[:-9], "Unterminated"),
        "no text": (b"\xff\xfe\x00", "codec can't decode|Expecting"),
        "deep": ("[" * 100_000, "nested too deeply"),
        "a list": ("[]", "list indices"),
        "a number": ("3", "not subscriptable"),
        "no users": ('{"num_samples": [], "user_data": {}}', "there is no 'users'"),
        "users that are numbers": (told(users=[3]), "do not agree"),
        "another user": (told(users=["v"]), "do not agree"),
        "a user twice": (told(users=["w", "w"], counts=[1, 1]), "do not agree"),
        "counts too few": (told(counts=[]), "do not agree"),
        "another count": (told(counts=[2]), r"784 pixels and one class per sample, met x \(1, 784\), y \(1,\)"),
        "a text as count": (told(counts=["1"]), "num_samples 1"),
        "no x": (told({"y": [3]}), "there is no 'x'"),
        "data that is a list": (told([ONE]), "list indices"),
        "nothing written": (told({"x": [], "y": []}, counts=[0]), r"met x \(0,\)"),
        "a pixel too few": (told({"x": [[0.5] * 783], "y": [3]}), r"met x \(1, 783\)"),
        "rows of two lengths": (told({"x": [[0.5] * 784, [0.5]], "y": [3, 4]}, counts=[2]), "inhomogeneous"),
        "words for pixels": (told({"x": [["dark"] * 784], "y": [3]}), "could not convert"),
        "NaN": (told({"x": [[float("nan")] * 784], "y": [3]}), "from 0 to 1"),
        "null": (told({"x": [[None] * 784], "y": [3]}), "from 0 to 1"),
        "bytes for pixels": (told({"x": [[255] * 784], "y": [3]}), "from 0 to 1"),
        "a number beyond floats": (told({"x": [[10**400] * 784], "y": [3]}), "too large"),
        "half a class": (told({"x": [[0.5] * 784], "y": [3.5]}), "whole numbers from 0 to 61"),
        "a class too high": (told({"x": [[0.5] * 784], "y": [62]}), "whole numbers from 0 to 61"),
        "a class below 0": (told({"x": [[0.5] * 784], "y": [-1]}), "whole numbers from 0 to 61"),
        "a class beyond integers": (told({"x": [[0.5] * 784], "y": [10**30]}), "whole numbers from 0 to 61"),
        "classes in rows": (told({"x": [[0.5] * 784], "y": [[3]]}), r"y \(1, 1\)"),
        "a name that moves the cursor": (
            '{"users": ["\\u001b[2J"], "num_samples": [2], "user_data": {"\\u001b[2J": {"x": [], "y": []}}}',
            r"\\x1b\[2J must have",
        ),
    }.values(),
)
def test_broken_files_are_named_with_the_reason(files, text, reason):
    first(files).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        DataError, match=rf"train_9.json is no file of LEAF's FEMNIST: .*({reason}).*Make it anew"
    ) as caught:
        femnist(2)
    assert "\x1b" not in str(caught.value)


def test_files_that_are_missing_too_large_or_there_twice(files, monkeypatch):
    folder, _ = files
    with monkeypatch.context() as patch:
        patch.setattr(writers, "LARGEST", 1000)
        with pytest.raises(DataError, match="more than 1,000 bytes"):
            femnist(2)
    (folder / "train" / "copy.json").write_bytes(first(files).read_bytes())
    with pytest.raises(DataError, match=r"copy.json: the writer f0000_14 is in another file, too"):
        femnist(5)
    for path in (folder / "test").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"no \*\.json in .*test\. Put the folders train and test with the JSON files"):
        femnist(2)
    monkeypatch.setenv("FEDHOLD_DATA", str(folder / "elsewhere"))
    with pytest.raises(DataError, match="there is no folder femnist in"):
        femnist(2)

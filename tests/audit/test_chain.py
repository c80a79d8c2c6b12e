"""An audit proves itself: any change of any line is found, and a receipt shows one node's rows without those of others."""

import dataclasses
import hashlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audits import NODES, identity, record, records
from fedhold.audit import (
    RoundRecord,
    append,
    array_hash,
    read,
    read_private_key,
    read_public_key,
    receipt,
    verify,
    verify_receipt,
)
from fedhold.audit.records import NodeRecord
from fedhold.cli.app import app

KEY = Ed25519PrivateKey.from_private_bytes(32 * b"k")
ROUNDS = 6
some = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def small(k):
    """Round k of a federation of four, short enough to try every byte."""
    return record(k, [identity(i) for i in range(4)])


@pytest.fixture(scope="module", params=[None, KEY], ids=["unsigned", "signed"])
def chain(request, tmp_path_factory):
    """The lines of a good audit, a place to write damaged ones, and the public key that they are signed with."""
    path = tmp_path_factory.mktemp("chain") / "audit.jsonl"
    for k in range(1, ROUNDS + 1):
        append(path, small(k), key=request.param)
    return path.read_bytes().splitlines(keepends=True), path, request.param and request.param.public_key()


def problems(chain, lines, **more):
    _, path, key = chain
    path.write_bytes(b"".join(lines))
    return verify(path, public_key=key, **more).problems


def literal_hash(line, previous):
    """The definition in the documents, step by step."""
    line = json.loads(line)
    assert line["previous"] == previous
    rows = [hashlib.sha256(written(row)).hexdigest() for row in line["nodes"]]
    said = {**{k: v for k, v in line.items() if k not in ("previous", "hash", "signature")}, "nodes": rows}
    content = hashlib.sha256(written(said)).hexdigest()
    return hashlib.sha256((previous + content).encode()).hexdigest()


def written(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def test_the_hashes_are_those_of_the_definition(chain):
    lines, previous = chain[0], 64 * "0"
    for line in lines:
        assert written(json.loads(line)) + b"\n" == line
        previous = literal_hash(line, previous)
        assert json.loads(line)["hash"] == previous
    assert problems(chain, lines) == []
    assert verify(chain[1]).head == previous


@some
@given(st.data())
def test_any_change_of_any_byte_is_found_and_named(chain, data):
    lines = list(chain[0])
    k = data.draw(st.integers(0, ROUNDS - 1))
    at = data.draw(st.integers(0, len(lines[k]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != lines[k][at]))
    lines[k] = lines[k][:at] + bytes([byte]) + lines[k][at + 1 :]
    found = problems(chain, lines)
    assert found[0].startswith(f"Line {k + 1} ")


def test_every_byte_of_a_line_counts(chain):
    """All of them, each in two ways, beside those that were drawn."""
    lines, (_, path, key) = chain[0][:1], chain
    whole = lines[0]
    for at in range(0, len(whole), 3):
        for bit in (1, 32):  # the second turns a letter into its capital
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            assert verify(path, public_key=key).problems, (at, whole[at : at + 20])


@some
@given(st.data())
def test_lines_removed_swapped_and_added_are_found(chain, data):
    good = chain[0]
    i, j = sorted(data.draw(st.lists(st.integers(0, ROUNDS - 1), min_size=2, max_size=2, unique=True)))
    head = json.loads(good[-1])["hash"]
    swapped = list(good)
    swapped[i], swapped[j] = good[j], good[i]
    assert problems(chain, swapped)
    assert problems(chain, [*good[:i], *good[j:]])
    assert problems(chain, [*good[:j], good[i], *good[j:]])
    assert problems(chain, good[:j]) == []  # lines cut from the end show only to who knows a hash
    assert "No line has the hash" in problems(chain, good[:j], known=head)[0]
    assert problems(chain, good, known=head) == []


def test_the_sentences_name_the_line(chain):
    good = chain[0]
    assert problems(chain, good[1:]) == ["Line 1 is not the first of its audit: lines before it were cut."]
    assert problems(chain, good[:2] + good[3:]) == ["Line 2 was replaced, or lines between it and line 3 were cut."]
    assert problems(chain, [*good[:3], good[1], *good[3:]])[0].startswith("Line 4 was moved") or problems(
        chain, [*good[:3], good[1], *good[3:]]
    )[0].startswith("Line 3 was added, or moved")
    torn = [*good[:-1], good[-1][:-9]]
    assert problems(chain, torn) == [f"Line {ROUNDS} was cut: it was not written to its end."]
    changed = good[2].replace(b'"clipped"', b'"dropped"', 1)
    assert problems(chain, [*good[:2], changed, *good[3:]]) == [
        "Line 3 was changed: its hash belongs to something else."
    ]
    assert "was added: it is not JSON" in problems(chain, [*good[:2], b"\n", *good[2:]])[0].replace("changed, or ", "")


def forged(line, previous, **facts):
    """A line with a right hash of its own, as someone without the key can make it."""
    line = {**json.loads(line), **facts, "previous": previous}
    line["hash"] = literal_hash(written(line), previous)
    return written(line) + b"\n"


def test_a_line_with_a_new_hash_of_its_own_is_found(chain):
    good = chain[0]
    fake = forged(good[2], json.loads(good[1])["hash"], outcome="kept")
    told = problems(chain, [*good[:2], fake, *good[3:]])
    assert "not signed with this key" in told[0] if chain[2] else "Line 3 was replaced" in told[0]
    added = forged(good[2], json.loads(good[2])["hash"], round=99)
    told = problems(chain, [*good[:3], added, *good[3:]])
    assert "not signed with this key" in told[0] if chain[2] else "Line 4 was added" in told[0]


def test_a_chain_that_is_written_anew_is_found_by_a_key_or_a_hash(chain):
    previous, lines = 64 * "0", []
    for line in chain[0]:
        lines.append(forged(line, previous, rule="mean"))
        previous = json.loads(lines[-1])["hash"]
    assert bool(problems(chain, lines)) == (chain[2] is not None)
    assert problems(chain, lines, known=json.loads(chain[0][0])["hash"])


def test_a_row_may_not_be_replaced_by_its_hash(chain):
    """The hash of the line would stay the same."""
    line = json.loads(chain[0][0])
    line["nodes"][0] = hashlib.sha256(written(line["nodes"][0])).hexdigest()
    assert "a row of `nodes` is no object" in problems(chain, [written(line) + b"\n", *chain[0][1:]])[0]


def test_every_field_of_a_line_is_documented(chain):
    """The reference is made of these docstrings."""
    line = json.loads(chain[0][0])
    for name in line:
        assert re.search(rf"^    {name}  +\S", RoundRecord.__doc__, re.MULTILINE), name
    for name in line["nodes"][0]:
        assert re.search(rf"^    {name}  +\S", NodeRecord.__doc__, re.MULTILINE), name


# Receipts


@pytest.fixture
def proofs(chain, tmp_path):
    chain[1].write_bytes(b"".join(chain[0]))
    made = {}
    for k in (0, 3):
        made[k] = tmp_path / f"{k}.json"
        made[k].write_bytes(receipt(chain[1], identity(k), 2))
    return made


def test_a_receipt_shows_a_node_its_rows_and_no_others(chain, proofs):
    proof = verify_receipt(proofs[0], public_key=chain[2])
    told = small(2)
    assert proof.record.nodes == tuple(row for row in told.nodes if row.node == identity(0))
    assert (proof.node, proof.record.round, proof.signed) == (identity(0), 2, chain[2] is not None)
    assert proof.head == verify(chain[1]).head
    text = proofs[0].read_text()
    assert all(identity(k) not in text for k in (1, 2, 3))
    assert problems(chain, chain[0], known=proof.head) == []
    assert problems(chain, chain[0][:-1], known=proof.head)


def test_a_receipt_may_hold_several_rows(chain, tmp_path):
    chain[1].write_bytes(b"".join(chain[0]))
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt(chain[1], identity(2)))
    assert {row.phase for row in verify_receipt(path).record.nodes} == {"train", "evaluate"}
    assert verify_receipt(path).record.round == ROUNDS


@some
@given(st.data())
def test_any_change_of_any_byte_of_a_receipt_is_found(chain, tmp_path, data):
    chain[1].write_bytes(b"".join(chain[0]))
    path, good = tmp_path / "receipt.json", receipt(chain[1], identity(0), 2)
    at = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != good[at]))
    path.write_bytes(good[:at] + bytes([byte]) + good[at + 1 :])
    with pytest.raises(ValueError, match="proves nothing"):
        verify_receipt(path, public_key=chain[2])


def test_the_receipt_of_another_node_does_not_verify(proofs):
    mine, other = (json.loads(proofs[k].read_bytes()) for k in (0, 3))
    rows = [row for row in other["line"]["nodes"] if isinstance(row, dict)]
    fakes = [
        {**other, "node": identity(0)},
        {**mine, "node": identity(3)},
        {**mine, "line": other["line"]},
        {**mine, "line": {**mine["line"], "nodes": [{**row, "node": identity(0)} for row in rows]}},
        {**mine, "line": {**mine["line"], "nodes": [row for row in mine["line"]["nodes"] if isinstance(row, str)]}},
        {**mine, "later": mine["later"][:-1]},
        {**mine, "line": {**mine["line"], "round": 3}},
    ]
    for fake in fakes:
        proofs[0].write_bytes(written(fake) + b"\n")
        with pytest.raises(ValueError, match="proves nothing"):
            verify_receipt(proofs[0])


def test_there_is_no_receipt_of_what_did_not_happen_or_was_damaged(chain):
    chain[1].write_bytes(b"".join(chain[0]))
    with pytest.raises(ValueError, match="no round with a row of node nobody"):
        receipt(chain[1], "nobody")
    with pytest.raises(ValueError, match="no round 99 with a row"):
        receipt(chain[1], identity(0), 99)
    chain[1].write_bytes(b"".join(chain[0]).replace(b"clipped", b"dropped", 1))
    with pytest.raises(ValueError, match=r"line 1 .*was changed.*fedhold verify"):
        receipt(chain[1], identity(0))


# Files


def test_a_full_file_gets_a_number_and_the_chain_goes_on(tmp_path):
    path = tmp_path / "audit.jsonl"
    append(path, record(1))
    size = path.stat().st_size
    for k in range(2, 25):
        append(path, record(k), max_bytes=int(2.5 * size))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 12
    assert max(file.stat().st_size for file in files) <= 2.5 * size
    assert verify(path).problems == []
    assert verify(path).lines == 24
    assert [each.round for each in read(path)] == list(range(1, 25))
    assert json.loads(receipt(path, NODES[0], 1))["head"] == verify(path).head
    (tmp_path / "audit.jsonl.3").rename(tmp_path / "elsewhere")
    (told,) = verify(path).problems
    assert told == "Line 2 of audit.jsonl.2 was replaced, or lines between it and line 1 of audit.jsonl.4 were cut."
    path.unlink()  # killed between the new name and the new file
    append(path, record(25))
    assert len(verify(path).problems) == 1


def test_a_line_that_was_cut_by_a_kill_is_kept_aside(tmp_path, caplog):
    path = tmp_path / "audit.jsonl"
    for each in records(3):
        append(path, each)
    whole = path.read_bytes()
    torn = whole[whole[:-1].rindex(b"\n") + 1 :][:-40]
    path.write_bytes(whole[: -len(torn) - 40] + torn)
    assert verify(path).problems == ["Line 3 was cut: it was not written to its end."]
    for each in records(4)[2:]:
        append(path, each)
    assert "was not written to its end, and is now in" in caplog.text
    assert verify(path).problems == []
    assert (tmp_path / "audit.jsonl.torn").read_bytes() == torn + b"\n"
    assert [each.round for each in read(path)] == [1, 2, 3, 4]
    path.write_bytes(torn)  # nothing but a torn line
    append(path, record(1))
    assert verify(path).lines == 1
    assert verify(path).problems == []


def test_a_file_of_another_kind_is_continued_and_told(tmp_path):
    """No file that a user names by mistake ends a run."""
    path = tmp_path / "notes.txt"
    path.write_text("shopping\n")
    append(path, record(1))
    append(path, record(2))
    assert path.read_text().startswith("shopping\n{")
    assert verify(path).problems == ["Line 1 was changed, or added: it is not JSON."]


def test_what_json_has_no_word_for_is_null_or_text(tmp_path):
    odd = RoundRecord(
        "r", 1, "t", "mean", "kept", (NodeRecord("1", "train", "kept", distance=float("inf"), name="\udc80"),)
    )
    odd = dataclasses.replace(odd, metrics={"train": {"loss": float("nan"), "x": [np.float64(1.5), -0.0]}})
    path = tmp_path / "a"
    append(path, odd)
    assert verify(path).problems == []
    (back,) = read(path)
    assert back.nodes[0].distance is None
    assert back.nodes[0].name == "\udc80"
    assert back.metrics == {"train": {"loss": None, "x": [1.5, -0.0]}}


# Arrays and keys


def test_the_hash_of_arrays_is_that_of_their_keys_dtypes_shapes_and_numbers():
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    told = hashlib.sha256(b'["b","|b1",[]]' + b"\x01" + b'["w","<f4",[2,3]]' + w.tobytes()).hexdigest()
    same = {"w": np.asfortranarray(w), "b": np.array(True)}
    assert array_hash(same) == array_hash({"b": np.array(True), "w": w}) == told
    others = [w.astype(np.float64), w.reshape(3, 2), w + np.float32(1e-6), w.astype(">f4"), w[:0]]
    assert len({array_hash({"w": each}) for each in [w, *others]} | {array_hash({"v": w})}) == 7


def pem(path, key, *, private):
    form = serialization.PrivateFormat.PKCS8 if private else serialization.PublicFormat.SubjectPublicKeyInfo
    more = (serialization.NoEncryption(),) if private else ()
    write = key.private_bytes if private else key.public_key().public_bytes
    path.write_bytes(write(serialization.Encoding.PEM, form, *more))
    return path


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_the_commands(tmp_path):
    private, public = pem(tmp_path / "audit.key", KEY, private=True), pem(tmp_path / "audit.pub", KEY, private=False)
    other = pem(tmp_path / "other.pub", Ed25519PrivateKey.generate(), private=False)
    path, proof = tmp_path / "audit.jsonl", tmp_path / "receipt.json"
    for each in records(4):
        append(path, each, key=read_private_key(private))
    done = run("verify", path, "--public-key", public)
    assert (done.exit_code, "4 lines; all are signed with this key" in done.output) == (0, True)
    assert run("verify", path, "--public-key", other).exit_code == 1
    assert "4 of 4 lines are signed, which --public-key checks" in run("verify", path).output
    proof.write_text(run("receipt", path, "--node", NODES[0], "--round", 3).output)
    done = run("verify", proof, "--public-key", public)
    assert (done.exit_code, f"Node {NODES[0]} in round 3" in done.output) == (0, True)
    assert "The receipt is genuine, signed with this key." in done.output
    assert run("verify", proof, "--public-key", other).exit_code == 2
    assert run("verify", path, "--head", proof).exit_code == 0
    assert run("verify", path, "--head", "ab").exit_code == 1
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert run("verify", path).exit_code == 0
    done = run("verify", path, "--head", proof)
    assert (done.exit_code, "was cut" in done.output) == (1, True)
    assert run("verify", tmp_path / "nowhere").exit_code == 1
    assert run("verify", path, "--public-key", private).exit_code == 2
    assert "openssl genpkey" in run("verify", path, "--public-key", path).output
    assert run("receipt", path, "--node", "nobody").exit_code == 2
    with pytest.raises(ValueError, match="Ed25519 public key"):
        read_public_key(private)


def test_without_cryptography_only_signatures_are_missing(tmp_path):
    append(tmp_path / "a", record(1))
    code = (
        "import sys; sys.modules['cryptography'] = None; from pathlib import Path; from fedhold import audit\n"
        "path = Path(sys.argv[1]); print(audit.verify(path).problems)\n"
        "try: audit.read_public_key(path)\nexcept ValueError as problem: print(problem)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[]")
    assert "pip install '.[sign]'" in done.stdout

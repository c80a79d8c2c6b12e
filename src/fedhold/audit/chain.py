"""An audit that proves itself: every line carries the hash of the line before it, and anyone can check all of them offline.

A line is one JSON object in its canonical form: keys sorted, no blanks, ASCII, floats as Python writes them, one newline at
the end. All hashes are SHA-256, written as 64 hexadecimal digits:

    content = SHA-256(the line without `previous`, `hash` and `signature`, each row of `nodes` replaced by its own SHA-256)
    hash    = SHA-256(previous content)

A node can therefore be given its own rows and no more than the hashes of the others' rows, and still compute the hash of the
line: that is a receipt. Whoever knows one hash of an audit can tell whether a line up to there was changed, cut, added or
moved.

`append` writes, `verify` and `verify_receipt` check, `receipt` extracts. Nothing here knows a server framework.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhold.audit.records import FORMAT, LINKS, RoundRecord, audit_files, object_of, record_of
from fedhold.report import visible

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

START = 64 * "0"  # what stands for the hash of the line before the first
SIGNED = (
    b"fedhold audit line "  # precedes the hash in what is signed, so that no other signature of the key passes for one
)
TORN = ".torn"  # ends the name of the file that gets lines which were not written to their end


class Verified(NamedTuple):
    """What came of checking an audit.

    problems   a sentence for each line that was changed, cut, added or moved; empty where everything holds
    lines      how many lines there are
    signed     how many of them carry a signature
    head       the hash of the last one
    """

    problems: list[str]
    lines: int
    signed: int
    head: str


class Receipt(NamedTuple):
    """What a sound receipt proves: these are the rows of a node in a round of the audit with this head.

    record   the round, of whose rows only those of the node are there
    node     its id
    head     the hash of the last line of the audit when the receipt was made
    signed   whether the line and the head carry signatures
    """

    record: RoundRecord
    node: str
    head: str
    signed: bool


@dataclass(frozen=True)
class _Link:
    """One line of an audit, checked by itself.

    where    its number, and its file where there are several
    line     what it holds; None where it cannot be read
    content  the hash of what it says
    flaw     what is wrong with it; None for a sound line
    """

    where: str
    line: Mapping[str, Any] | None
    content: str = ""
    flaw: str | None = None

    @property
    def hash(self) -> str:
        """The hash that the line says it has."""
        return str(self.line["hash"]) if self.line else ""


# Hashes


def canonical(value: Any) -> bytes:
    """The one way in which a value is written, without the newline.

    >>> canonical({"b": 1.0, "a": ["x y", None]})
    b'{"a":["x y",null],"b":1.0}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def array_hash(arrays: Mapping[str, NDArray[Any]]) -> str:
    """The SHA-256 of a model or an update, as the audit has it; a node can compute it of the arrays that it sent.

    Of every array in the order of the keys, these are hashed: the canonical JSON of [key, dtype, shape], with the dtype as
    NumPy writes it ("<f4"), and its numbers in C order.

    arrays  key -> array, in the dtypes in which they travel

    >>> array_hash({"w": np.zeros(2, np.float32)})[:8]
    'ff126804'
    """
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(canonical([key, array.dtype.str, array.shape]))
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def finite(value: Any) -> Any:
    """`value` for JSON: null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _content(line: Mapping[str, Any]) -> str:
    """The hash of what a line says. In a receipt the rows of other nodes are hashes already."""
    rows = [row if isinstance(row, str) else _sha256(canonical(row)) for row in line["nodes"]]
    return _sha256(canonical({key: line[key] for key in line if key not in LINKS} | {"nodes": rows}))


def _linked(previous: str, content: str) -> str:
    return _sha256(f"{previous}{content}".encode())


# Writing


def append(
    path: Path, record: RoundRecord, *, key: Ed25519PrivateKey | None = None, max_bytes: int | None = None
) -> None:
    """Put one round at the end of the audit, on the disk before this returns. Numbers that are not finite become null.

    A line that a killed process has not written to its end is moved to a file of the same name with `.torn`; the log says so.

    path       the audit; a file that is there already is continued
    record     the round
    key        signs the line; None for none
    max_bytes  a file that would become larger is renamed to its name with a number, `audit.jsonl.1` being the oldest, and the
               chain goes on in a new file
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _set_torn_line_aside(path)
    line: dict[str, Any] = finite({"format": FORMAT, **asdict(record)})
    line["previous"] = _last_hash(path)
    line["hash"] = _linked(line["previous"], _content(line))
    line["signature"] = None if key is None else key.sign(SIGNED + line["hash"].encode()).hex()
    data = canonical(line) + b"\n"
    if max_bytes is not None and path.exists() and 0 < path.stat().st_size > max_bytes - len(data):
        numbers = [int(file.suffix[1:]) for file in audit_files(path) if file != path]
        path.rename(path.with_name(f"{path.name}.{max(numbers, default=0) + 1}"))
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _set_torn_line_aside(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        torn = _last_line(file)
        if not torn or torn.endswith(b"\n"):
            return
        aside = path.with_name(path.name + TORN)
        with aside.open("ab") as other:
            other.write(torn + b"\n")
            os.fsync(other.fileno())
        file.seek(-len(torn), os.SEEK_END)
        file.truncate()
    logging.getLogger("fedhold").warning(
        "The last line of %s was not written to its end, and is now in %s.", visible(path), visible(aside)
    )


def _last_line(file: BinaryIO) -> bytes:
    """What stands behind the last newline but that at the very end."""
    size, tail, step = file.seek(0, os.SEEK_END), b"", 2**16
    while len(tail) < size and b"\n" not in tail[:-1]:
        file.seek(max(0, size - step))
        tail, step = file.read(), 4 * step
    return tail[tail[:-1].rfind(b"\n") + 1 :]


def _last_hash(path: Path) -> str:
    """The hash of the last line of an audit. A line that is none of ours counts by its bytes, so that no file ends a run."""
    for file in reversed(audit_files(path)):
        with file.open("rb") as opened:
            last = _last_line(opened)
        if last:
            link = _link("", last)
            return str(link.line["hash"]) if link.line else _sha256(last)
    return START


# Checking


def verify(path: Path, *, public_key: Ed25519PublicKey | None = None, known: str | None = None) -> Verified:
    """Check an audit: its files in their order, every line by itself, and that it follows the line before it.

    This finds every change but one: where the last lines were cut, or all lines from one on written anew. `known` finds that,
    and a signature for each line shows that nobody without the key wrote it.

    path        the audit
    public_key  every line must be signed with the key that belongs to this one; None does not look at signatures
    known       a hash that one of the lines must have, such as the head of a receipt
    """
    links = list(_links(path))
    if not links:
        raise ValueError(f"{path} holds no finished round yet. A strategy writes one after each.")
    places = {link.hash: k for k, link in reversed(list(enumerate(links)))} | {START: -1}
    problems, before = list[str](), _Link("the start", {"hash": START})
    for k, link in enumerate(links):
        if link.flaw is not None or link.line is None:
            problems.append(f"{link.where} {link.flaw}.")
        elif public_key is not None and not _is_signed(link.hash, link.line["signature"], public_key):
            problems.append(f"{link.where} is not signed with this key.")
        # What a changed line says is no evidence of what stood before or after it.
        elif before.flaw is None and link.line["previous"] != before.hash:
            follows = places.get(link.line["previous"])
            if follows is None and k == 0:
                problems.append(f"{link.where} is not the first of its audit: lines before it were cut.")
            elif follows is None:
                problems.append(f"{before.where} was replaced, or lines between it and {_inside(link)} were cut.")
            elif follows < k:
                problems.append(f"{before.where} was added, or moved: {_inside(link)} follows an earlier line.")
            else:
                problems.append(f"{link.where} was moved: it follows {_inside(links[follows])}.")
        before = link
    if known is not None and known not in places:
        problems.append(f"No line has the hash {visible(known)}: it was cut, or lines up to it were written anew.")
    signed = sum(bool(link.line and link.line.get("signature")) for link in links)
    return Verified(problems, len(links), signed, links[-1].hash)


def _inside(link: _Link) -> str:
    """Where a line is, inside a sentence."""
    return link.where[0].lower() + link.where[1:]


def _links(path: Path) -> Iterator[_Link]:
    files = audit_files(path) or [path]
    for file in files:
        with file.open("rb") as opened:
            for number, data in enumerate(opened, start=1):
                yield _link(f"Line {number}" + f" of {visible(file.name)}" * (len(files) > 1), data)


def _link(where: str, data: bytes) -> _Link:
    if not data.endswith(b"\n"):
        return _Link(where, None, flaw="was cut: it was not written to its end")
    try:
        line = object_of(data[:-1].decode())
        record_of(line)
        if not _has_links(line):
            raise ValueError("it has no hash")
        content = _content(line)
    except ValueError as problem:
        return _Link(where, None, flaw=f"was changed, or added: {visible(problem)}")
    if canonical(line) + b"\n" != data:
        return _Link(where, line, content, "was changed: it is not in canonical form")
    if line["hash"] != _linked(line["previous"], content):
        return _Link(where, line, content, "was changed: its hash belongs to something else")
    return _Link(where, line, content)


# Receipts


def receipt(path: Path, node: str, number: int | None = None) -> bytes:
    """The proof of what was done to a node in a round: one line of canonical JSON, which verify_receipt() checks.

    path    the audit
    node    the id of the node
    number  the round; None for the last one in which the node has a row
    """
    links = list(_links(path))
    for link in links:
        if link.flaw is not None:
            raise ValueError(f"{_inside(link)} of {path} {link.flaw}. See: fedhold verify {path}")
    for k, link in reversed(list(enumerate(links))):
        line = dict(link.line or {})
        if number in (None, line["round"]) and any(row["node"] == node for row in line["nodes"]):
            line["nodes"] = [row if row["node"] == node else _sha256(canonical(row)) for row in line["nodes"]]
            last = links[-1].line or {}
            proof = {"receipt": FORMAT, "node": node, "line": line, "later": [one.content for one in links[k + 1 :]]}
            return canonical({**proof, "head": last["hash"], "signature": last.get("signature")}) + b"\n"
    when = "no round" if number is None else f"no round {number}"
    raise ValueError(f"{path} has {when} with a row of node {node}. The ids are in: fedhold report {path}")


def is_receipt(path: Path) -> bool:
    """Whether a file holds a receipt, and not an audit."""
    with path.open("rb") as file:
        return file.read(8) == b'{"head":'


def verify_receipt(path: Path, *, public_key: Ed25519PublicKey | None = None) -> Receipt:
    """Check a receipt; one that proves nothing is a ValueError.

    path        the file
    public_key  line and head must be signed with the key that belongs to this one; None does not look at signatures
    """
    data = path.read_bytes()
    try:
        proof = object_of(data.decode())
        if proof.keys() != {"receipt", "node", "line", "later", "head", "signature"} or proof["receipt"] != FORMAT:
            raise ValueError("it is not as `fedhold receipt` writes them")
        line, later, head = proof["line"], proof["later"], proof["head"]
        if not isinstance(line, dict) or not isinstance(line.get("nodes"), list) or not isinstance(later, list):
            raise ValueError("it holds no line of an audit")
        own = [row for row in line["nodes"] if isinstance(row, dict)]
        others = [row for row in line["nodes"] if not isinstance(row, dict)]
        record = record_of({**line, "nodes": own})
        if {row.node for row in record.nodes} != {proof["node"]}:
            raise ValueError("its rows are those of another node")
        if not (_has_links(line) and all(map(_is_hash, [*others, *later, head])) and _may_sign(proof)):
            raise ValueError("a hash or a signature in it is none")
        if canonical(proof) + b"\n" != data:
            raise ValueError("it is not in canonical form")
        if line["hash"] != _linked(line["previous"], _content(line)):
            raise ValueError("the hash of its line belongs to something else")
        if head != reduce(_linked, later, line["hash"]):
            raise ValueError("its head does not follow from its line")
        if public_key is not None and not (
            _is_signed(line["hash"], line["signature"], public_key) and _is_signed(head, proof["signature"], public_key)
        ):
            raise ValueError("it is not signed with this key")
    except ValueError as problem:
        raise ValueError(f"{path} proves nothing: {visible(problem)}. Ask for another receipt.") from None
    return Receipt(record, proof["node"], head, bool(line["signature"] and proof["signature"]))


# Keys and signatures


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 private key in a PEM file, as `openssl genpkey -algorithm ed25519` writes it."""
    return _read_key(path, "private")


def read_public_key(path: Path) -> Ed25519PublicKey:
    """The Ed25519 public key in a PEM file, as `openssl pkey -pubout` writes it."""
    return _read_key(path, "public")


def _read_key(path: Path, kind: str) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ValueError("signatures need cryptography; from a checkout of fedhold: pip install '.[sign]'") from None
    data = path.read_bytes()
    key: Any = None
    with suppress(ValueError, TypeError, UnsupportedAlgorithm):  # no PEM, another kind of key, one with a password
        key = (
            serialization.load_pem_private_key(data, password=None)
            if kind == "private"
            else serialization.load_pem_public_key(data)
        )
    if not isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise ValueError(
            f"{path} is no Ed25519 {kind} key without a password. Make a pair with: openssl genpkey -algorithm ed25519 -out "
            "audit.key; openssl pkey -in audit.key -pubout -out audit.pub"
        )
    return key


def _is_signed(value: str, signature: str | None, key: Ed25519PublicKey) -> bool:
    """Whether a hash carries a signature of the key."""
    from cryptography.exceptions import InvalidSignature

    with suppress(InvalidSignature):
        key.verify(bytes.fromhex(signature or ""), SIGNED + value.encode())
        return True
    return False


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _may_sign(holder: Mapping[str, Any]) -> bool:
    """Whether `signature` is null or has the form of one."""
    value = holder.get("signature", "")
    return value is None or (isinstance(value, str) and re.fullmatch("[0-9a-f]{128}", value) is not None)


def _has_links(line: Mapping[str, Any]) -> bool:
    return _is_hash(line.get("previous")) and _is_hash(line.get("hash")) and _may_sign(line)

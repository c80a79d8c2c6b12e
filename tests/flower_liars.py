"""What bad nodes reply: every entry takes the message and the honest reply to it, and gives what comes back instead."""

import io
import pickle

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from flower_grid import SILENT, reply_with


def parts(reply):
    """The arrays, as NumPy arrays, and the metrics of an honest reply."""
    arrays = {key: array.numpy().copy() for key, array in reply.content["arrays"].items()}
    return arrays, dict(reply.content["metrics"])


def with_arrays(change):
    def reply(message, honest):
        arrays, metrics = parts(honest)
        return reply_with(message, {**arrays, **change(arrays)}, metrics)

    return reply


def with_metrics(change):
    """Arrays stay honest, if there are any: this goes for evaluation too."""

    def reply(message, honest):
        metrics = {**honest.content["metrics"], **change}
        metrics = {key: value for key, value in metrics.items() if value is not None}
        records = {key: record for key, record in honest.content.items() if key != "metrics"}
        return Message(RecordDict({**records, "metrics": MetricRecord(metrics)}), reply_to=message)

    return reply


def with_content(make):
    def reply(message, honest):
        return Message(RecordDict(make(dict(honest.content.items()))), reply_to=message)

    return reply


def saved(array, pickled=False):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=pickled)
    return file.getvalue()


def raw(data=None, dtype="float32", shape=(3, 2), stype="numpy.ndarray"):
    """An Array that says what it likes about its bytes."""
    return lambda arrays: {"w": Array(dtype, shape, stype, saved(arrays["w"]) if data is None else data)}


def claims_much(message, honest):
    arrays, metrics = parts(honest)
    arrays["w"] -= 100
    return reply_with(message, arrays, {**metrics, "num-examples": 10**12})


def without(key):
    def reply(message, honest):
        arrays, metrics = parts(honest)
        del arrays[key]
        return reply_with(message, arrays, metrics)

    return reply


def raises(_message, _honest):
    raise RuntimeError("out of memory\n" * 1000)


def in_the_name_of_another(_message, honest):
    honest.metadata.__dict__["_src_node_id"] = 77
    return honest


def never_sent(_message, honest):
    honest.metadata.__dict__["_reply_to_message_id"] = "message-never-sent"
    return honest


def without_secret(_message, honest):
    honest.metadata.group_id = "0" * 32
    return honest


def forged_first(message, honest):
    """Another's reply, which has all but the secret of the message, and then the node's own."""
    forged = claims_much(message, honest)
    forged.metadata.group_id = ""
    return [forged, honest]


def forged_error_first(message, honest):
    forged = Message(Error(2, "it failed"), reply_to=message)
    forged.metadata.group_id = "0" * 32
    return [forged, honest]


def many_names(records, entries):
    """One record under many names: small to send, since Flower sends it once."""

    def change(content):
        one = MetricRecord({str(i): i for i in range(entries)})
        return content | {f"more{i}": one for i in range(records)}

    return with_content(change)


def many_fields():
    """The header of an array whose dtype has a long name."""
    fields = ", ".join(f"('{i}', '<f4')" for i in range(3000))
    text = f"{{'descr': [{fields}], 'fortran_order': False, 'shape': (3, 2), }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def nested_header():
    return b"\x93NUMPY\x01\x00" + (8000).to_bytes(2, "little") + b"(" * 7999 + b"\n"


def huge_header():
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was loaded')",))


BOMB = pickle.dumps(Bomb())
OBJECTS = saved(np.array([[None] * 2] * 3, dtype=object), pickled=True)
WORDS = np.array([["a", "b"]] * 3)

# name -> (reply, what the reason of the rejection must say)
REJECTED = {
    "NaN": (with_arrays(lambda a: {"w": a["w"] * np.nan}), "not finite"),
    "one inf": (with_arrays(lambda _: {"b": np.array(-np.inf)}), "not finite"),
    "wrong shape": (with_arrays(lambda a: {"w": a["w"].T}), "shape"),
    "flat": (with_arrays(lambda a: {"w": a["w"].ravel()}), "shape"),
    "a million zeros": (with_arrays(lambda _: {"w": np.zeros(10**6, np.float32)}), "bytes; at most"),
    "extra array": (with_arrays(lambda a: {"x": a["w"]}), "extra array"),
    "missing array": (without("b"), "misses array"),
    "missing counter": (without("steps"), "misses array"),
    "no arrays": (with_content(lambda c: c | {"arrays": ArrayRecord()}), "misses array"),
    "no ArrayRecord": (with_content(lambda c: {"metrics": c["metrics"]}), "no ArrayRecord"),
    "two ArrayRecords": (with_content(lambda c: c | {"more": c["arrays"]}), "2 ArrayRecords"),
    "no MetricRecord": (with_content(lambda c: {"arrays": c["arrays"]}), "no MetricRecord"),
    "two MetricRecords": (with_content(lambda c: c | {"more": c["metrics"]}), "2 MetricRecords"),
    "nothing": (with_content(lambda _: {}), "no MetricRecord"),
    "NaN weight": (with_metrics({"num-examples": float("nan")}), "not a positive number"),
    "inf weight": (with_metrics({"num-examples": float("inf")}), "not a positive number"),
    "negative weight": (with_metrics({"num-examples": -5}), "not a positive number"),
    "zero weight": (with_metrics({"num-examples": 0}), "not a positive number"),
    "list weight": (with_metrics({"num-examples": [50, 50]}), "is a list"),
    "missing weight": (with_metrics({"num-examples": None}), "no metric 'num-examples'"),
    "garbage bytes": (with_arrays(raw(b"\x00garbage" * 9)), "no NumPy array"),
    "no bytes": (with_arrays(raw(b"")), "no NumPy array"),
    "nested header": (with_arrays(raw(nested_header())), "no NumPy array"),
    "a terabyte, it says": (with_arrays(raw(huge_header(), shape=(10**12,))), "shape"),
    "pickle": (with_arrays(raw(BOMB)), "no NumPy array"),
    "object dtype": (with_arrays(raw(OBJECTS, dtype="object")), "dtype object"),
    "string dtype": (with_arrays(lambda _: {"w": WORDS}), "dtype <U1"),
    "complex dtype": (with_arrays(lambda a: {"w": a["w"].astype(complex)}), "dtype complex128"),
    "integers for floats": (with_arrays(lambda a: {"w": a["w"].astype(np.int32)}), "dtype int32"),
    "floats for integers": (with_arrays(lambda _: {"steps": np.array(1.5)}), "dtype float64"),
    "beyond float32": (with_arrays(lambda a: {"w": a["w"].astype(float) + 1e200}), "numbers beyond float32"),
    "longdouble": (with_arrays(lambda a: {"w": a["w"].astype(np.longdouble)}), "dtype"),
    "lying shape": (with_arrays(raw(shape=(2, 3))), "declares"),
    "lying dtype": (with_arrays(raw(dtype="float64")), "declares"),
    "lying stype": (with_arrays(raw(stype="pickle")), "serialised as 'pickle'"),
    "bytes cut off": (with_arrays(lambda a: raw(saved(a["w"])[:-4])(a)), "20 bytes for 6 numbers"),
    "bytes to spare": (with_arrays(lambda a: raw(saved(a["w"]) + b"1234")(a)), "28 bytes for 6 numbers"),
    "bools of 2": (
        with_arrays(lambda _: {"mask": np.array([2, 0], np.uint8).view(np.bool_)}),
        "bytes other than 0 and 1",
    ),
    "exception": (raises, "error 2: RuntimeError: out of memory"),
    "silence": (lambda *_: SILENT, "no reply"),
    "in the name of another": (in_the_name_of_another, "no reply"),
    "to a message never sent": (never_sent, "never sent"),
    "without the secret": (without_secret, "lacks the secret"),
    "thousands of records": (many_names(5000, 1), "records; at most 100"),
    "thousands of entries": (many_names(1, 20_000), "entries in a record; at most 10,00"),
    "one record many times": (many_names(90, 9000), "bytes; at most"),
    "a key of 3 MB": (with_metrics({"k" * 3_000_000: 1}), "characters in a key; at most"),
    "a name of 3 MB": (with_content(lambda c: c | {"k" * 3_000_000: ConfigRecord()}), "characters in the name"),
    "a text of 200 kB": (with_content(lambda c: c | {"x": ConfigRecord({"t": "t" * 200_000})}), "characters in a text"),
    "an array under a key of 900 kB": (with_arrays(lambda _: {"k" * 900_000: np.ones(1)}), "extra array"),
    "a dtype of 3,000 fields": (with_arrays(raw(many_fields())), "no NumPy array"),
    "a shape of 3,000 axes": (with_arrays(raw(shape=(1,) * 3000)), "declares"),
    "cannot be inflated": (lambda *_: ValueError("bad object"), "could not be read"),
}
# name -> (reply, what the row must say although the update counts)
REMARKED = {
    "missing metric": (with_metrics({"loss": None}), "miss 'loss'"),
    "NaN metric": (with_metrics({"loss": float("nan")}), "metric 'loss' is not finite"),
    "huge metric": (with_metrics({"loss": 1e300}), "beyond"),
    "list metric": (with_metrics({"loss": [0.1, 0.2]}), "is a list of 2"),
    "huge weight": (claims_much, "capped"),
    "forged first": (forged_first, "lacks the secret"),
    "a forged error first": (forged_error_first, "lacks the secret"),
    "twice": (lambda _, honest: [honest, honest], "more than once"),
}
# name -> reply; a robust rule holds these down, and only the weight tells
HELD = {
    "huge numbers": with_arrays(lambda a: {"w": a["w"] + np.float32(1e30)}),
    "far away": with_arrays(lambda a: {"w": a["w"] - 50}),
    "counter at its end": with_arrays(lambda _: {"steps": np.array(2**63 - 1)}),
    "mask turned": with_arrays(lambda a: {"mask": ~a["mask"]}),
}
# name -> reply; the update is honest, and nothing gives the lie away but that others say something else
LIES_OF_METRICS = {"loss of 9e5": with_metrics({"loss": 9e5}), "extra metric": with_metrics({"more": 1})}
EVERY = {**{name: reply for name, (reply, _) in {**REJECTED, **REMARKED}.items()}, **HELD, **LIES_OF_METRICS}

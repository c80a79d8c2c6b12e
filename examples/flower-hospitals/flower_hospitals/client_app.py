"""The hospitals: each node is one of them, by its partition-id."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_hospitals.model import learn, measure
from flower_hospitals.patients import HOSPITALS, Floats, Patients, load

app = ClientApp()
LIES = ("sign_flip", "label_flip", "non_finite", "boast")


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the hospital's own patients; if it is the liar, reply with its lie."""
    config, hospital = context.run_config, which(context)
    patients, _ = load(hospital, int(config["seed"]))
    w, samples = model(message), len(patients.targets)
    lie = str(config["lie"]) if hospital == config["liar"] else "none"
    if lie == "label_flip":
        patients = Patients(patients.inputs, 1 - patients.targets)
    step, penalty = float(config["step"]), float(config["penalty"])
    update = learn(w, patients, steps=int(config["local-steps"]), step=step, penalty=penalty) - w
    if lie in ("sign_flip", "boast"):
        update *= -float(config["lie-scale"])
    if lie == "boast":
        samples = 10**9
    if lie == "non_finite":
        update[:] = np.nan
    arrays = ArrayRecord({"w": Array(w + update)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": samples})}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on the hospital's held-out patients, whose data never leave it."""
    hospital = which(context)
    _, patients = load(hospital, int(context.run_config["seed"]))
    with np.errstate(all="ignore"):  # a model that liars own may overflow
        measured = measure(model(message), patients)
    metrics = {"hospital": HOSPITALS.index(hospital), "num-examples": len(patients.targets), **measured}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def which(context: Context) -> str:
    """The name of this node's hospital."""
    return HOSPITALS[int(context.node_config["partition-id"])]


def model(message: Message) -> Floats:
    """The model that the server sent."""
    return message.content["arrays"]["w"].numpy()

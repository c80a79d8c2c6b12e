"""Logistic regression: P(ill) = 1 / (1 + exp(-<x, w>)), the last number of w the intercept."""

import numpy as np

from flower_hospitals.patients import Floats, Patients


def learn(w: Floats, patients: Patients, *, steps: int, step: float, penalty: float) -> Floats:
    """Steps of gradient descent on the mean log loss + penalty |w|^2 / 2, the intercept left out of the penalty."""
    free = np.append(np.ones(len(w) - 1), 0)
    for _ in range(steps):
        wrong = _probability(w, patients.inputs) - patients.targets
        w = w - step * (patients.inputs.T @ wrong / len(wrong) + penalty * free * w)
    return w


def measure(w: Floats, patients: Patients) -> dict[str, float]:
    """The accuracy, and the mean log loss (tossing a coin has log 2 = 0.69)."""
    scores = patients.inputs @ w
    loss = np.logaddexp(0, scores) - patients.targets * scores  # -log of the probability given to the truth
    return {"accuracy": float(np.mean((scores > 0) == (patients.targets > 0))), "log-loss": float(np.mean(loss))}


def _probability(w: Floats, inputs: Floats) -> Floats:
    p: Floats = np.exp(-np.logaddexp(0, -(inputs @ w)))
    return p

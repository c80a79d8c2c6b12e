"""A hierarchy: ten edges aggregate ten clients each, and the root aggregates the edges. 20 clients lie, and one edge."""

import numpy as np

from fedhold import aggregate

rng = np.random.default_rng(0)
samples = rng.integers(50, 150, 100)
updates = 1 + rng.standard_normal((100, 1000)) / np.sqrt(samples)[:, None]  # The truth is 1 everywhere.
updates[rng.permutation(100)[:20]] = -3
values, counts, withstood = [], [], []
for clients in np.split(np.arange(100), 10):
    edge = aggregate(updates[clients], samples=samples[clients])
    values.append(edge.value)
    counts.append(sum(client.samples for client in edge.clients if client.status != "rejected"))
    withstood.append((len(clients) - 1) // 2)  # liars among so many clients: a minority
values[3][:] = -3  # this edge lies itself
root = aggregate(np.array(values), samples=counts)
f = (len(values) - 1) // 2  # lying edges that the root withstands
print(f"error {np.sqrt(np.mean((root.value - 1) ** 2)):.4f}, weight of the lying edge {root.clients[3].weight:.3f}")
print(f"sure against any {sum(sorted(withstood)[: f + 1]) + f} lying clients of {len(updates)}; a flat rule against 49")

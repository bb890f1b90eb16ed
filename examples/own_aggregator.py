"""An aggregator of one's own: believe the client whose vector is nearest to all others (Krum's idea).
In a file, with --path examples: [aggregation] kind = "own_aggregator:Nearest"."""

from dataclasses import dataclass

import numpy as np

import upcycled as up


@dataclass(frozen=True)
class Nearest:
    needs_noise_std = is_weighted = False
    start = dict  # it remembers nothing

    def combine(self, own, received):
        apart = received.release.vectors[:, None] - received.release.vectors
        first = int(np.linalg.norm(apart, axis=2).sum(axis=1).argmin())
        return up.Combination(lambda vectors: vectors[first]), own


if __name__ == "__main__":
    data = up.data.synthetic("iid", clients=10, sizes=60, seed=0)
    print(up.train(data, algorithm=up.FedAvg(), aggregation=Nearest(), iterations=20, progress=False).accuracy)

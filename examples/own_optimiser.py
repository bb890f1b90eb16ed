"""An optimiser of one's own: anything that makes a torch optimiser of parameters, anew for every client and round.

In a file, with --path examples, its fields are keys: [local] kind = "own_optimiser:Rprop", lr = 0.01, epochs = 2.
"""

from dataclasses import dataclass

import torch

import upcycled as up


@dataclass(frozen=True)
class Rprop:
    lr: float = 0.01

    def __call__(self, parameters):
        return torch.optim.Rprop(parameters, lr=self.lr)


if __name__ == "__main__":
    data = up.data.synthetic(0.5, 0.5, clients=10, sizes=60, seed=0)
    local = up.LocalOptimizer(Rprop(lr=0.02), epochs=2, batch_size=None)
    print(f"accuracy {up.train(data, algorithm=up.FedAvg(), local=local, iterations=20, progress=False).accuracy:.3f}")

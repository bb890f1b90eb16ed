"""A rule of one's own: the extrapolated step of FedExP (Jhunjhunwala et al. 2023, arXiv:2301.09604).

With y the model that was sent, r_i the releases and p_i their weights, a data round is answered by a step of

    1 + rho = max(1, sum p_i ||r_i - y||^2 / (2 ||sum p_i r_i - y||^2 + small)):

the more the clients' updates cancel in their mean, the further. Known privacy noise is subtracted from both sums.
In a file, with --path examples: [upcycle] kind = "own_rule:FedExP".
"""

from dataclasses import dataclass

import numpy as np

import upcycled as up


@dataclass(frozen=True)
class FedExP:
    most: float = 2.0  # the largest rho
    small: float = 1e-3  # added below the line, as a part of the sum above it

    depth = 2  # it looks at two iterates: what was sent, and what the server made of the answers
    uses_spread = True  # and at sum p_i ||r_i - y||^2 less the noise in it, which `seen.spread` has
    start = dict  # it remembers nothing

    def move(self, own, seen, moves):
        pull = seen.mean - seen.iterates[-2].model
        squared = float(pull @ pull)
        # A difference of two near numbers says little: at least a quarter is left.
        squared = max(squared - pull.size * seen.noise_std**2, 0.25 * squared)
        spread = squared if seen.spread is None else seen.spread  # not known where only the aggregate leaves
        below = 2 * squared + self.small * spread
        rho = float(np.clip(spread / below - 1, 0, self.most)) if 0 < below < np.inf else 0.0
        return up.Move(up.coefficients.extrapolate(seen, rho, moves), rho), own


if __name__ == "__main__":
    data = up.data.synthetic("iid", clients=10, sizes=60, seed=0)
    print(up.train(data, algorithm=up.FedAvg(), upcycle=FedExP(), iterations=20, progress=False).accuracy)

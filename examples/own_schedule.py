"""A learning rate of one's own: a function of the data round m = 1 .. M and of M.

In a file, with --path examples: [local.lr] kind = "own_schedule:triangle".
"""

import upcycled as up


def triangle(m, M):
    """Rise to the middle of the run, and fall again."""
    return 0.05 * (1 - abs(2 * m - M - 1) / (M + 1))


if __name__ == "__main__":
    data = up.data.synthetic(0.5, 0.5, clients=10, sizes=60, seed=0)
    local = up.LocalSGD(lr=triangle, epochs=2)  # or up.LocalAdam, up.LocalAdamW
    print(f"accuracy {up.train(data, algorithm=up.FedAvg(), local=local, iterations=20, progress=False).accuracy:.3f}")

"""An independent float64 implementation of the algorithms' table: softmax regression, full batch, all clients.

Written from the published equations with explicit loops; shares no code with the package.
"""

from __future__ import annotations

import numpy as np


def softmax_gradient(theta, x, y, classes):
    """Gradient of the mean cross-entropy of softmax regression, theta = (W row-major, bias)."""
    features = x.shape[1]
    weight, bias = theta[: classes * features].reshape(classes, features), theta[classes * features :]
    logits = x @ weight.T + bias
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x / len(y)).ravel(), p.mean(axis=0)])


class Reference:
    """One federation, one algorithm by name; ``run`` returns the final global model."""

    def __init__(self, name, options, xs, ys, classes, start, lr, momentum, epochs):
        self.name, self.o, self.xs, self.ys, self.classes = name, options, xs, ys, classes
        self.lr, self.momentum, self.epochs = lr, momentum, epochs
        self.w = start.astype(np.float64)
        zeros = np.zeros_like(self.w)
        self.n = np.array([len(y) for y in ys], dtype=np.float64)
        self.c, self.c_i = zeros, [zeros for _ in ys]
        self.h, self.h_i = zeros, [zeros for _ in ys]
        self.v, self.m = zeros, zeros
        self.theta = [None for _ in ys]
        if name in ("fedyogi", "fedadam"):
            self.v = zeros + options["tau"] ** 2

    def grad(self, theta, i):
        return softmax_gradient(theta, self.xs[i], self.ys[i], self.classes)

    def local(self, i):
        x, v = self.w.copy(), np.zeros_like(self.w)
        if self.name == "pfedme":
            theta = self.w.copy()
            for _ in range(self.epochs):
                for _ in range(self.o["inner_steps"]):
                    theta = theta - self.o["inner_lr"] * (self.grad(theta, i) + self.o["lam"] * (theta - x))
                x = x - self.lr * self.o["lam"] * (x - theta)
            self.theta[i] = theta
            return x
        for _ in range(self.epochs):
            g = self.grad(x, i)
            if self.name == "fedprox":
                g = g + self.o["mu"] * (x - self.w)
            if self.name == "scaffold":
                g = g - self.c_i[i] + self.c
            if self.name == "feddyn":
                g = g - self.h_i[i] + self.o["alpha"] * (x - self.w)
            v = self.momentum * v + g
            x = x - self.lr * v
        return x

    def data_round(self):
        w, total = self.w, len(self.xs)
        r = [self.local(i) for i in range(total)]
        mean = sum(n * ri for n, ri in zip(self.n, r, strict=True)) / self.n.sum()
        step = self.o.get("server_lr", 1.0)
        if self.name in ("fedavg", "fedprox"):
            self.w = w + step * (mean - w)
        elif self.name == "fedavgm":
            b, s = self.o["server_momentum"], self.o["server_lr"]
            d = w - mean
            self.v = b * self.v + d
            self.w = w - s * (d + b * self.v) if self.o["nesterov"] else w - s * self.v
        elif self.name == "scaffold":
            divisor = self.lr * sum((1 - self.momentum**s) / (1 - self.momentum) for s in range(1, self.epochs + 1))
            new = [self.c_i[i] - self.c + (w - r[i]) / divisor for i in range(total)]
            self.c = self.c + sum(new[i] - self.c_i[i] for i in range(total)) / total
            self.c_i = new
            self.w = w + step * (mean - w)
        elif self.name == "feddyn":
            alpha = self.o["alpha"]
            self.h_i = [self.h_i[i] - alpha * (r[i] - w) for i in range(total)]
            self.h = self.h - alpha * sum(ri - w for ri in r) / total
            self.w = w + step * (sum(r) / total - self.h / alpha - w)
        elif self.name == "pfedme":
            self.w = (1 - self.o["beta"]) * w + self.o["beta"] * mean
        elif self.name == "fedadam":
            d = mean - w
            self.m = self.o["beta1"] * self.m + (1 - self.o["beta1"]) * d
            self.v = self.o["beta2"] * self.v + (1 - self.o["beta2"]) * d**2
            self.w = w + self.o["server_lr"] * self.m / (np.sqrt(self.v) + self.o["tau"])
        elif self.name == "fednova":  # all clients take as many steps here, and FedNova is FedAvg
            self.w = w + step * (mean - w)
        elif self.name == "fedyogi":
            d = mean - w
            self.m = self.o["beta1"] * self.m + (1 - self.o["beta1"]) * d
            self.v = self.v - (1 - self.o["beta2"]) * d**2 * np.sign(self.v - d**2)
            self.w = w + self.o["server_lr"] * self.m / (np.sqrt(self.v) + self.o["tau"])
        else:
            raise ValueError(self.name)

    def run(self, iterations, rho=None):
        """``rho`` is None for vanilla, else a function of m."""
        for t in range(1, iterations + 1):
            if rho is None or t % 2 == 1:
                before, c_before = self.w, self.c
                self.data_round()
            else:
                ratio = rho(t // 2)
                self.w, self.c = (
                    self.w + ratio * (self.w - before),
                    self.c + ratio * (self.c - c_before),
                )
        return self.w

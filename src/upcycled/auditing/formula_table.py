"""Which numbers each privacy formula needs and may take: read by the command line before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """What a calculator needs beside the number asked for, and what it may take."""

    about: str
    noise: str
    """The number that the question ``noise`` asks for."""
    count: str
    """The number that the question ``rounds`` asks for."""
    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()
    gives_delta: bool = False
    """Whether delta can be asked for."""

    def needed(self, question: str, asks_delta: bool = False) -> list[str]:
        """Return the numbers without which a question has no answer.

        >>> FORMULAS["gaussian"].needed("noise"), FORMULAS["gaussian"].needed("epsilon", asks_delta=True)
        (['rounds', 'sensitivity', 'delta', 'epsilon'], ['rounds', 'sensitivity', 'noise_std', 'epsilon'])
        """
        asked = {"noise": self.noise, "rounds": self.count}.get(question)
        found = [name for name in self.needs if name != asked]
        if question != "epsilon":
            return [*found, "epsilon"]
        return [name for name in found if name != "delta"] + ["epsilon"] if asks_delta else found

    def options(self, question: str) -> list[str]:
        """Return the numbers that may be given with a question, those it needs first."""
        either = ["epsilon"] if question == "epsilon" and self.gives_delta else []
        return list(dict.fromkeys([*self.needed(question), *either, *self.takes]))


_RELEASE = ("rounds", "noise_std", "delta")
_LOSS = ("norm_bound", "classes", "no_bias", "lipschitz", "smoothness")

FORMULAS: dict[str, Formula] = {
    "gaussian": Formula(
        "Gaussian releases of a known sensitivity, exact",
        "noise_std", "rounds", ("rounds", "sensitivity", "noise_std", "delta"), gives_delta=True,
    ),
    "paper-output": Formula(
        "the paper's output perturbation, beside what clipping guarantees",
        "noise_std", "rounds", ("rounds", "clip_norm", "noise_std", "n", "delta"), gives_delta=True,
    ),
    "paper-objective": Formula(
        "the paper's objective perturbation, beside what is proven",
        "alpha", "rounds", ("alpha", "u1", "u2", "n", "a", "rounds"), ("norm_bound", "classes", "no_bias"),
    ),
    "objective": Formula(
        "objective perturbation of softmax regression",
        "alpha", "rounds", ("alpha", "norm_bound", "n", "a", "rounds"),
        ("classes", "no_bias", "delta", "gamma", "cover_alpha"),
    ),
    "sampled": Formula(
        "noisy steps on secret Poisson batches (DP-SGD)",
        "noise_multiplier", "steps", ("q", "noise_multiplier", "steps", "delta"), ("adjacency",),
    ),
    "pure": Formula("equal rounds of pure epsilon", "epsilon_each", "rounds", ("epsilon_each", "rounds"), ("delta",)),
    "erm": Formula(
        "the minimiser of a strongly convex objective, with Gaussian noise",
        "noise_std", "rounds", ("n", "a", *_RELEASE), (*_LOSS, "gamma"), gives_delta=True,
    ),
    "gd": Formula(
        "gradient descent with its steps fixed in advance, with Gaussian noise",
        "noise_std", "rounds", ("n", "a", "steps", *_RELEASE), (*_LOSS, "lr"), gives_delta=True,
    ),
    "sgd": Formula(
        "minibatch SGD on a convex loss, with Gaussian noise on its last iterate",
        "noise_std", "rounds", ("lr", "passes", "batch", *_RELEASE), (*_LOSS, "n", "a"), gives_delta=True,
    ),
}  # fmt: skip

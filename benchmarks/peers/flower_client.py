"""W1's client for Flower: a module of its own, so that Ray's workers import it once and keep its data in memory."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.peers import w1

app = ClientApp()


@functools.cache
def partitions() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in w1.load()[0]]


def new_model() -> nn.Module:
    return nn.Linear(w1.FEATURES, w1.CLASSES)


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = partitions()[int(context.node_config["partition-id"])]
    model = new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=w1.LR, momentum=w1.MOMENTUM)
    for _ in range(w1.EPOCHS):
        for rows in torch.randperm(len(y)).split(w1.BATCH):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    perturb(model)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    """Clip the whole model, then add noise: Flower's own modifiers clip the change, which is another mechanism."""
    parameters = list(model.parameters())
    scale = w1.CLIP / max(w1.CLIP, float(nn.utils.get_total_norm(parameters)))
    for p in parameters:
        p.mul_(scale).add_(torch.randn_like(p), alpha=w1.NOISE)

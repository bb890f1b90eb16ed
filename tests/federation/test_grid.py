"""Flower's own messages, over a Grid in this process: nothing is lost on the way through its records."""

from types import SimpleNamespace

import pytest
import torch

import upcycled as up
from tests.federation.in_process import NAMES, experiment_of, federation_of, make_site
from upcycled.federation.coordinator import plan_at_server, terms_of
from upcycled.federation.messages import Refusal, packed
from upcycled.federation.transport import GridPost, app_bytes, content_of, fields_of
from upcycled.training.train import run_plan

pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")
pytestmark = pytest.mark.filterwarnings("ignore")


class GridHere:
    """What of Flower's Grid the exchange uses, with sites in the place of nodes."""

    def __init__(self, sites):
        self.sites = dict(enumerate(sites.values(), start=100))
        self.names = dict(enumerate(sites, start=100))
        self.replies = {}
        self.dead = set()

    def get_nodes(self):
        from flwr.proto.node_pb2 import NodeInfo

        return [NodeInfo(name=name, node_id=node, last_activated_at="today") for node, name in self.names.items()]

    def push_messages(self, messages):
        from flwr.app import Error, Message

        names = []
        for message in messages:
            name = message.object_id
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            if node in self.dead:
                self.replies[name] = Message(Error(8, "gone"), reply_to=message)
            else:
                reply = self.sites[node].reply(fields_of(message.content))
                self.replies[name] = Message(content_of(reply), reply_to=message)
            names.append(name)
        return names

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


@pytest.fixture
def grid(federation, tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    return GridHere({name: make_site(federation, i, tmp_path) for i, name in enumerate(NAMES)})


def test_a_run_over_flowers_messages_has_the_simulators_bits(grid, federation):
    post = GridPost(grid)
    sites = SimpleNamespace(sites=dict.fromkeys(NAMES), nodes=post.nodes, push=post.push, pull=post.pull)
    experiment, events = experiment_of(algorithm={"name": "scaffold"}), []
    made = federation_of(sites, events)
    terms = terms_of(experiment, 3, 4, "run")
    plan, _ = plan_at_server(experiment.spec(3), made.introduced(terms, {}), None)
    result = run_plan(plan.kept(progress=False), [], None, made.data_round(terms))
    whole = up.train(federation, experiment.spec(3).replace(progress=False))
    assert torch.equal(whole.params, result.params)
    # Four hellos, and four questions in each of three data rounds: none for the upcycled iterations.
    assert post.counted == {"pushed": 16, "pulled": 16}
    grid.dead = {101}
    again = terms_of(experiment, 3, 4, "again")
    run_plan(plan.kept(progress=False), [], None, made.data_round(again))
    assert {event.reason for event in events if event.site} == {"its process died"}


def test_fields_survive_flowers_records(grid):
    fields = packed(Refusal("no")) | {"vector": b"\x00\xff" * 5}
    assert fields_of(content_of(fields)) == fields


def test_the_app_that_flower_wants_is_one(grid):
    assert len(app_bytes()) < 10_000

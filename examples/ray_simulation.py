"""An experiment's clients as Flower's virtual nodes on Ray: on this machine, or on the cluster that RAY_ADDRESS names.

    pip install '.[flower]' 'flwr[simulation]==1.41.0'
    python examples/ray_simulation.py examples/synthetic.toml --folder ray-results

Every virtual node is a site that plays a client of the experiment's data, so this is a simulation, and protects nobody;
`upcycled run` does the same on one machine, many times faster. Ray listens on all interfaces of a machine, whatever it
is told: run it in a network of its own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upcycled.config.experiment import load_config
from upcycled.federation.coordinator import Federation
from upcycled.federation.exchange import ConnectedNode, Delivery, Exchange, Patience
from upcycled.federation.messages import Fields
from upcycled.federation.server_run import run_seed
from upcycled.federation.site.policy import policy_of
from upcycled.federation.site.site import Site, open_site
from upcycled.federation.transport import QUIET, GridPost, check_flower, content_of, fields_of

WHO = "who"
"""What the server asks first: virtual nodes have numbers, and no names."""


def site_of(experiment: str, folder: str, number: int) -> Site:
    """Return the site that a virtual node is, made anew for each message: what it remembers is in its folder."""
    limits = {"mechanisms": ["none"], "least_noise": 0.01, "most_epsilon": 100.0}
    privacy = load_config(experiment).privacy
    if privacy is not None:
        limits["mechanisms"] = [privacy.mechanism]
    raw = {
        "name": f"site-{number}",
        "simulation": True,
        "data": {"experiment": experiment, "client": number},
        "privacy": limits,
    }
    home = Path(folder) / "sites" / f"site-{number}"
    return open_site(policy_of(raw, home), home)


@dataclass(frozen=True)
class VirtualPost:
    """Flower's Grid, with a name for each of its nodes."""

    grid: GridPost
    names: dict[int, str] = field(default_factory=dict)

    def learn(self, exchange: Exchange, clients: int) -> None:
        """Wait for all nodes, and ask each which client it is."""
        while len(found := list(self.grid.grid.get_nodes())) < clients:
            exchange.pause()
        asked: dict[int, tuple[ConnectedNode, Fields]] = {
            number: (ConnectedNode(node.node_id), {"kind": WHO}) for number, node in enumerate(found)
        }
        gathered = exchange.gather(asked, lambda client, fields: str(fields["site"]))
        for reason in gathered.reasons.values():
            raise RuntimeError(f"a virtual node did not say which client it is: {reason}")
        self.names.update({found[number].node_id: name for number, name in gathered.answers.items()})

    def nodes(self) -> Mapping[str, ConnectedNode]:
        """Return the nodes by the names that they gave."""
        return {name: ConnectedNode(number) for number, name in self.names.items()}

    def push(self, letters: Sequence[tuple[int, Fields]], seconds: float) -> list[str | None]:
        """Send one message to each node."""
        return self.grid.push(letters, seconds)

    def pull(self, messages: Sequence[str]) -> list[Delivery]:
        """Return what came back."""
        return self.grid.pull(messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", metavar="CONFIG.toml")
    parser.add_argument("--folder", default="ray-results", metavar="FOLDER", help="results, and the sites' own files")
    parser.add_argument("--cpus", type=int, default=1, metavar="N", help="of each client (default: 1)")
    given = parser.parse_args()
    check_flower()
    os.environ |= QUIET
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    path, folder = os.path.abspath(given.experiment), os.path.abspath(given.folder)
    experiment = load_config(path).model_copy(update={"results": os.path.join(folder, "results")})
    clients = experiment.build_data().num_clients
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.query("upcycled")
    def answer(message: Any, context: Any) -> Any:
        number, asked = int(context.node_config["partition-id"]), fields_of(message.content)
        said: Fields = {"site": f"site-{number}"}
        reply = said if asked["kind"] == WHO else site_of(path, folder, number).reply(asked)
        return Message(content_of(reply), reply_to=message)

    @server_app.main()
    def serve(grid: Any, context: Any) -> None:
        patience = Patience()
        post = VirtualPost(GridPost(grid))
        post.learn(Exchange(post, patience), clients)
        sites = tuple(f"site-{i}" for i in range(clients))

        def federation(tell: Any) -> Federation:
            return Federation(sites, post, Exchange(post, patience), patience, tell=tell)

        for seed in experiment.seeds:
            summary, _ = run_seed(experiment, seed, federation)
            print(f"seed {seed}: {summary['data_rounds']} data rounds, {summary['messages']} messages", flush=True)

    backend = {"client_resources": {"num_cpus": given.cpus, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, clients, backend_config=backend)


if __name__ == "__main__":
    main()

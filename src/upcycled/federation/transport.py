"""All that knows Flower's own functions: its Grid, its Control and Fleet interfaces, its messages.

Flower's server is used as it is. Both ends of it are ours: a site keeps one connection to it and no process or port
beside that, and the command that runs an experiment takes the seat of Flower's ServerApp itself. Neither ever looks at
the code that Flower would ship.

Flower's public API (``ServerApp``, ``ClientApp``, mods) starts a process for every message, which takes longer than a
data round does here. Sites that stay warm need parts of Flower that are not public. All of them are in this file.
``OLDEST`` and ``NEWEST`` are the versions it was tested with; ``tests/federation/test_flower_canary.py`` checks each.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from upcycled._utils.extras import needs
from upcycled._utils.lock import InUseError, locked
from upcycled.core.errors import InputError, UpcycledError, reason_of
from upcycled.federation.exchange import ConnectedNode, Delivery
from upcycled.federation.messages import Fields

OLDEST, NEWEST = (1, 40), (1, 42)
"""Flower's minor versions that were tested, the first and the last."""
REQUIREMENT = f"flwr>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
"""What pip installs, as in pyproject.toml."""
RECORD = "upcycled"
KIND = "query.upcycled"
"""Flower's name for our messages."""
KEY_HEADER = "x-upcycled-key"
"""What carries the key of the federation's folder, where Flower asks for none (see ``superlink``)."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_LOG_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing is told to anybody, and nothing is looked up elsewhere."""
SEATS = "seats"
"""Beside the federation's key: a folder for each run that a command leads, locked for as long as that lives."""
HEARTBEAT = 15.0
"""Seconds: a node that is silent for twice as long is taken to be gone."""
ERRORS = {
    3: "the message expired",
    4: "the reply was lost",
    5: "its node is gone",
    8: "its process died",
}
"""What Flower's error numbers mean."""


class ConnectionLostError(UpcycledError):
    """Flower's server cannot be reached, or does not know who asks (exit code 1 on the command line)."""

    is_refusal = False
    """Whether it was reached, and said no."""


def check_flower() -> None:
    """Refuse to begin without Flower, or with one whose functions may be others.

    Raises:
        InputError: in one sentence.
    """
    os.environ |= {name: value for name, value in QUIET.items() if name not in os.environ}
    needs("a federation", "flwr")
    found = metadata.version("flwr")
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        raise InputError(
            f"flwr {found} is installed, but these commands were tested with {REQUIREMENT}: pip install '{REQUIREMENT}'"
        )


# Messages.


def content_of(fields: Fields) -> Any:
    """Return fields as the content of Flower's message: one record, so that few objects travel."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD: ConfigRecord(dict(fields))})


def fields_of(content: Any) -> Fields:
    """Return the fields of a message's content; none where it has no record of ours."""
    found = dict(content).get(RECORD)
    return {} if found is None else dict(found)


@dataclass(frozen=True)
class GridPost:
    """Flower's Grid as the exchange uses it."""

    grid: Any
    counted: dict[str, int] = field(default_factory=lambda: {"pushed": 0, "pulled": 0})
    """Messages that really went over the Grid."""

    def nodes(self) -> Mapping[str, ConnectedNode]:
        """Return the nodes that are connected, by the names that their keys were registered with."""
        found = [node for node in self.grid.get_nodes() if node.name]
        return {node.name: ConnectedNode(node.node_id, node.last_activated_at) for node in found}

    def push(self, letters: Sequence[tuple[int, Fields]], seconds: float) -> list[str | None]:
        """Send one message to each node."""
        from flwr.app import Message

        messages = [Message(content_of(fields), node, KIND, ttl=seconds) for node, fields in letters]
        self.counted["pushed"] += len(messages)
        return list(self.grid.push_messages(messages)) or [None] * len(messages)

    def pull(self, messages: Sequence[str]) -> list[Delivery]:
        """Return what came back."""
        found = []
        for message in self.grid.pull_messages(list(messages)):
            replies_to = message.metadata.reply_to_message_id
            if message.has_error():
                number = message.error.code
                words = ERRORS.get(number, f"Flower's error {number}")
                found.append(Delivery(replies_to, None, words))
            else:
                self.counted["pulled"] += 1
                found.append(Delivery(replies_to, fields_of(message.content)))
        return found


# The server's end.


def run_superlink(flags: Sequence[str], layer: type, **options: Any) -> None:
    """Run Flower's server in this process, with an ASGI layer around it.

    Args:
        flags: of flower-superlink.
        layer: the class of the layer, made with the app that it surrounds.
        **options: of the layer.
    """
    needs("a federation", "flwr")
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: (Middleware(layer, **options),)
    sys.argv = ["flower-superlink", *flags]
    flower_superlink()


@dataclass(frozen=True)
class Link:
    """Where Flower's server is, how it proves itself, and the key of whoever runs the federation."""

    address: str
    certificate: Path
    key: Path
    """32 bytes, 0600: never sent to a site."""

    def register(self, name: str, public_key: bytes) -> None:
        """Let a site's key in, under its name."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with self._control() as control:
            control.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name))

    def nodes(self) -> list[Any]:
        """Return all nodes that were registered, as Flower describes them."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with self._control() as control:
            found = control.ListNodes(ListNodesRequest()).nodes_info
            return [node for node in found if node.status != "unregistered"]

    @contextmanager
    def seat(self) -> Iterator[Any]:
        """Begin a run at Flower's server, take its ServerApp's seat, and yield the Grid."""
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
        from flwr.supercore.task_identity import TaskIdentity

        with self._begun() as token:
            grid = _grid(self.address, self.certificate.read_bytes(), token)
            client, over = grid._runtime_client, threading.Event()
            beating = threading.Thread(target=_beat, args=(client, over), daemon=True)
            beating.start()
            status, details = "failed", "stopped"
            try:
                given = client.PullTaskInput(PullTaskInputRequest())
                TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
                TaskIdentity.node_id = given.context.node_id
                grid.set_run(run_from_proto(given.run))
                yield grid
                status, details = "completed", ""
            finally:
                over.set()
                with suppress(Exception):
                    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
                beating.join(timeout=5)
                grid.close()

    @contextmanager
    def _begun(self) -> Iterator[str]:
        """Begin a run at Flower's server, and yield its token; a lock says for how long somebody leads it.

        Runs that nobody leads any more are ended first. Flower itself waits a minute for a sign of life of a command
        that was killed, and for as long a site to which it was sending waits for the rest of the question.
        """
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        app, seats = app_bytes(), self.key.parent / SEATS
        request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {})))
        with ExitStack() as taken:
            # One at a time: between its beginning and its lock a run looks like one that nobody leads, and Flower hands
            # its seat to whoever asks first.
            with locked(seats, is_private=True, waits=True), self._control() as control:
                _end_dead_runs(seats, control)
                run = int(control.StartRun(request).run_id)
                taken.callback(shutil.rmtree, seats / str(run), ignore_errors=True)
                taken.enter_context(locked(seats / str(run), is_private=True))
                token = self._token(run)
            yield token

    def _token(self, run: int) -> str:
        """Return what allows to act as a run's ServerApp: whoever has the federation's key may."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        acquire = "/flwr.proto.Runtime/AcquireTask"
        proof = SuperExecAuthHttpInterceptor(master_secret=self.key.read_bytes(), protected_methods={acquire})
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        client = RuntimeHttpClient.from_server_address(
            self.address, False, self.certificate.read_bytes(), [version, proof]
        )
        try:
            for _ in range(100):
                given = client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
                if given.HasField("task") and given.token and given.task.run_id == run:
                    return str(given.token)
                time.sleep(0.1)
        finally:
            client.close()
        raise ConnectionLostError("Flower's server did not hand the run over within ten seconds")

    @contextmanager
    def _control(self) -> Iterator[Any]:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        own = [RuntimeVersionHttpInterceptor(component_name="flwr"), _WithKey(self.key.read_bytes().hex())]
        client = ControlHttpClient.from_server_address(self.address, False, self.certificate.read_bytes(), own)
        try:
            yield client
        except Exception as error:
            if isinstance(error, UpcycledError):
                raise
            raise ConnectionLostError(f"Flower's server at {self.address} says no: {_words(error)}") from error
        finally:
            client.close()


@dataclass(frozen=True)
class _WithKey:
    """Shows the federation's key with every request."""

    key: str

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[KEY_HEADER] = self.key
        return call_next(context)


def _end_dead_runs(seats: Path, control: Any) -> None:
    """End the runs whose commands were killed: their locks are free."""
    from flwr.proto.control_pb2 import StopRunRequest

    for seat in sorted(path for path in seats.iterdir() if path.name.isdigit()):
        with suppress(InUseError), locked(seat, is_private=True):
            try:
                control.StopRun(StopRunRequest(run_id=int(seat.name)))
            except Exception as error:
                # Flower says no to one that has ended by now, and to one that another database knew.
                if getattr(error, "response", None) is None:
                    raise
            shutil.rmtree(seat, ignore_errors=True)


def _grid(address: str, certificate: bytes, token: str) -> Any:
    """Return Flower's Grid, with shorter waits for a reply whose objects are still on their way."""
    from functools import partial

    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import HttpGrid, http_grid

    http_grid.pull_objects = partial(pull_objects, initial_backoff=0.05, backoff_cap=1.0)
    return HttpGrid(address, False, certificate, token=token)


def _beat(client: Any, over: threading.Event) -> None:
    """Tell Flower's server that the run goes on."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    while not over.wait(HEARTBEAT / 3):
        with suppress(Exception):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "upcycled-federation"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr=={version}"]

[tool.flwr.app]
publisher = "upcycled"

[tool.flwr.app.components]
serverapp = "upcycled_app.server_app:app"
clientapp = "upcycled_app.client_app:app"

[tool.flwr.app.config]
"""
SERVER_APP = """\
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    raise RuntimeError("this federation is run by `upcycled federation run`")
"""
CLIENT_APP = """\
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    raise RuntimeError("this federation's sites run `upcycled federation join`")
"""


def app_bytes() -> bytes:
    """Return the app that Flower wants to be given with a run: it does nothing, and no site of ours loads it."""
    from flwr.cli.build import build_fab_from_files

    texts = {
        "pyproject.toml": PYPROJECT.format(version=metadata.version("flwr")),
        "upcycled_app/__init__.py": "",
        "upcycled_app/server_app.py": SERVER_APP,
        "upcycled_app/client_app.py": CLIENT_APP,
    }
    made: bytes = build_fab_from_files({name: text.encode() for name, text in texts.items()})[0]
    return made


# A site's end.


@dataclass(frozen=True)
class Letter:
    """A message that came to a site."""

    message: Any
    fields: Fields


class NodeLink:
    """A site's one connection: outbound, authenticated by its key, and by the server's certificate."""

    def __init__(self, address: str, certificate: bytes, private_key: bytes, before: int = 0) -> None:
        """Connect as the node that this key was registered for.

        Args:
            address: of the server.
            certificate: by which it proves itself.
            private_key: of this site.
            before: the node that a process of this site was before, which may have died without a word: Flower would
                let its key in only after half a minute of silence.

        Raises:
            ConnectionLostError: in one sentence, if the server cannot be reached, or does not know the key.
        """
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        key: Any = load_ssh_private_key(private_key, None)
        own = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        self._client = FleetHttpClient.from_server_address(address, False, certificate, own)
        self._over = threading.Event()
        self.lost = False
        """Whether the server does not know this node any more."""
        request = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=HEARTBEAT)
        if before:
            with suppress(Exception):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=before))
        try:
            with self._said():
                self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except ConnectionLostError as error:
            self._client.close()
            if not error.is_refusal:
                raise
            words = "the federation's server does not let this site's key in: it is not registered, or in use already"
            raise ConnectionLostError(words) from error
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @property
    def node(self) -> int:
        """Flower's number of this node."""
        return int(self._node.node_id)

    def receive(self) -> Letter | None:
        """Return the next message, with its content; None where there is none.

        Raises:
            ConnectionLostError: in one sentence.
        """
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

        with self._said():
            given = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not given.messages_list:
                return None
            about, tree = message_from_proto(given.messages_list[0]), given.message_object_trees[0]
            run, name = about.metadata.run_id, about.metadata.message_id
            contents = pull_objects(
                [one.object_id for one in iterate_object_tree(tree)],
                make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
                initial_backoff=0.05,
                backoff_cap=1.0,
                max_time=600,
            )
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)(name)
            message: Any = inflate_object_from_contents(name, contents)
            message.metadata.__dict__["_message_id"] = name
        return Letter(message, fields_of(message.content) if message.has_content() else {})

    def send(self, letter: Letter, fields: Fields | None, error: str = "") -> None:
        """Reply to a message: with fields, or with the word that there are none.

        Raises:
            ConnectionLostError: in one sentence.
        """
        from flwr.app import Error, Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import push_objects

        said = Error(8, error) if fields is None else content_of(fields)
        reply = Message(said, reply_to=letter.message)
        run = letter.message.metadata.run_id
        with self._said(), no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            given = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                )
            )
            push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, given.session_id)
            push_objects(objects, push, object_ids_to_push=set(given.objects_to_push))

    def close(self) -> None:
        """Say goodbye, as far as anybody hears it."""
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        self._over.set()
        with suppress(Exception):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def _beat(self) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        while not self._over.wait(HEARTBEAT / 3):
            with suppress(Exception):
                request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
                self.lost = not self._client.SendNodeHeartbeat(request).success

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            is_refusal = getattr(error, "response", None) is not None
            what = "says no" if is_refusal else "cannot be reached"
            lost = ConnectionLostError(f"the federation's server {what}: {_words(error)}")
            lost.is_refusal = is_refusal
            raise lost from error


def _words(error: Exception) -> str:
    """Return what Flower or the network said, in a few words."""
    response = getattr(error, "response", None)
    if response is not None:
        with suppress(Exception):
            said = response.json()
            return f"{said.get('message') or said.get('detail') or said} ({response.status_code})"
        return f"status {response.status_code}"
    return reason_of(error)

"""Each part of Flower that ``federation/transport.py`` uses and Flower does not promise: a new version fails here."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from upcycled.federation import transport

pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")
pytestmark = pytest.mark.filterwarnings("ignore")

SOURCES = Path(transport.__file__).parents[1]


def imported():
    """What the module imports from Flower, as (module, name)."""
    tree = ast.parse(Path(transport.__file__).read_text(encoding="utf-8"))
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return sorted({(node.module, a.name) for node in nodes if node.module.startswith("flwr.") for a in node.names})


def part(module, name):
    """One part of Flower, or a failure that says what is missing."""
    missing = f"flwr {version('flwr')} has no {module}.{name}, which federation/transport.py uses"
    try:
        found = import_module(module)
    except ImportError:
        pytest.fail(missing)
    for step in name.split("."):
        if not hasattr(found, step):
            try:
                found = import_module(f"{found.__name__}.{step}")
            except (ImportError, AttributeError):
                pytest.fail(missing)
        else:
            found = getattr(found, step)
    return found


@pytest.mark.parametrize(("module", "name"), imported())
def test_flower_has_what_the_transport_imports(module, name):
    part(module, name)


CLIENTS = {
    "flwr.supernode.fleet_http_client.FleetHttpClient": (
        *("ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PushMessages"),
        *("PullObject", "PushObject", "ConfirmMessageReceived", "from_server_address", "close"),
    ),
    "flwr.supercore.runtime.RuntimeHttpClient": (
        *("AcquireTask", "PullTaskInput", "PushTaskOutput", "SendTaskHeartbeat", "from_server_address", "close"),
    ),
    "flwr.supercore.control.ControlHttpClient": (
        *("RegisterNode", "ListNodes", "StartRun", "StopRun", "from_server_address", "close"),
    ),
    "flwr.superlink.grid.HttpGrid": (
        *("_runtime_client", "set_run", "get_nodes", "push_messages", "pull_messages", "close"),
    ),
}


@pytest.mark.parametrize(("client", "method"), [(client, name) for client, names in CLIENTS.items() for name in names])
def test_flowers_clients_have_these_methods(client, method):
    module, _, name = client.rpartition(".")
    part(module, f"{name}.{method}")


FIELDS = {
    "control_pb2": {
        "RegisterNodeRequest": ("public_key", "name"),
        "ListNodesResponse": ("nodes_info",),
        "StartRunRequest": ("fab",),
        "StartRunResponse": ("run_id",),
        "StopRunRequest": ("run_id",),
    },
    "runtime_pb2": {
        "AcquireTaskRequest": ("supported_task_types",),
        "AcquireTaskResponse": ("task", "token"),
        "PullTaskInputResponse": ("task_id", "run", "context"),
        "PushTaskOutputRequest": ("sub_status", "details"),
    },
    "fleet_pb2": {
        "ActivateNodeRequest": ("public_key", "heartbeat_interval"),
        "DeactivateNodeRequest": ("node_id",),
        "PullMessagesResponse": ("messages_list", "message_object_trees"),
        "PushMessagesRequest": ("node", "messages_list", "message_object_trees", "clientapp_runtime_list"),
        "PushMessagesResponse": ("objects_to_push", "session_id"),
    },
    "heartbeat_pb2": {
        "SendNodeHeartbeatRequest": ("node", "heartbeat_interval"),
        "SendNodeHeartbeatResponse": ("success",),
    },
    "node_pb2": {"NodeInfo": ("node_id", "name", "status", "last_activated_at")},
}


@pytest.mark.parametrize(("module", "message"), [(module, name) for module, names in FIELDS.items() for name in names])
def test_flowers_protocol_has_these_fields(module, message):
    known = part(f"flwr.proto.{module}", message).DESCRIPTOR.fields_by_name
    missing = [name for name in FIELDS[module][message] if name not in known]
    assert not missing, f"flwr {version('flwr')}: {message} has no {missing}, which federation/transport.py uses"


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        (
            "flwr.supercore.inflatable.inflatable_utils",
            "pull_objects",
            ("initial_backoff", "backoff_cap", "max_time"),
        ),
        ("flwr.supercore.inflatable.inflatable_utils", "push_objects", ("object_ids_to_push",)),
        ("flwr.superlink.grid", "HttpGrid", ("token",)),
        (
            "flwr.supercore.interceptors",
            "SuperExecAuthHttpInterceptor",
            ("master_secret", "protected_methods"),
        ),
        ("flwr.supercore.interceptors", "RuntimeVersionHttpInterceptor", ("component_name",)),
    ],
)
def test_flowers_functions_take_these_arguments(module, name, arguments):
    known = inspect.signature(part(module, name)).parameters
    missing = [argument for argument in arguments if argument not in known]
    assert not missing, f"flwr {version('flwr')}: {name} takes no {missing}, which federation/transport.py gives it"


def test_the_grid_pulls_objects_by_the_name_that_is_replaced():
    pull = part("flwr.superlink.grid.http_grid", "HttpGrid.pull_messages")
    assert part("flwr.superlink.grid.http_grid", "pull_objects")
    assert "pull_objects" in pull.__code__.co_names, "HttpGrid.pull_messages calls no pull_objects of its module"


def test_the_superlink_asks_for_the_middleware_by_the_name_that_is_replaced():
    part("flwr.superlink.extensions", "get_middleware")
    folder = Path(import_module("flwr.superlink").__file__).parent
    asked = [path for path in folder.rglob("*.py") if "extensions.get_middleware" in path.read_text(encoding="utf-8")]
    assert asked, "Flower's server does not ask flwr.superlink.extensions for its middleware when it starts"


def test_a_messages_id_is_where_it_is_written():
    metadata = part("flwr.app", "Metadata")(1, "", 1, 2, "", "", 1.0, 60.0, "query.upcycled")
    metadata.__dict__["_message_id"] = "named"
    assert metadata.message_id == "named", "a message's id is not metadata._message_id"


def test_a_seat_takes_the_identity_of_its_task(monkeypatch):
    identity = part("flwr.supercore.task_identity", "TaskIdentity")
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(identity, f"_{name}", None)
        setattr(identity, name, 7)
        assert getattr(identity, name) == 7


def test_only_the_transport_imports_flower():
    knowing = [path.name for path in SOURCES.rglob("*.py") if "from flwr" in path.read_text(encoding="utf-8")]
    assert knowing == ["transport.py"]

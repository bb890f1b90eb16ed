"""Who is not let in: keys that nobody registered, servers that are not the invitation's, requests without the key."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")

from tests.federation.real_federation import RAW, free_port
from tests.wording import has_all
from upcycled.config.experiment import parse
from upcycled.federation.certificates import make_authority, make_secret, public_line, read_invitation, site_key
from upcycled.federation.folder import invite, let_in, make_folder
from upcycled.federation.local import down, register, start_server, status, trial_policy
from upcycled.federation.site.join_checks import check_joining
from upcycled.federation.site.policy import policy_of
from upcycled.federation.transport import ConnectionLostError, NodeLink

pytestmark = [pytest.mark.federation, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("doors") / "federation"
    made = make_folder(parse(RAW), path, [f"site-{i}" for i in range(4)], "127.0.0.1", free_port(), "127.0.0.1")
    try:
        start_server(made, lambda words: None)
        yield made
    finally:
        down(made)


def connect(folder, key, certificate=None):
    link = NodeLink(folder.address, certificate or (folder.path / "ca.crt").read_bytes(), key)
    link.close()
    return link.node


def test_a_key_is_let_in_once_it_is_registered_and_not_before(folder, tmp_path):
    key = site_key(tmp_path / "key")
    with pytest.raises(ConnectionLostError, match="site's key"):
        connect(folder, key)
    let_in(folder, "site-0", public_line(key))
    assert register(folder, "site-0")
    assert connect(folder, key) == connect(folder, key)
    with pytest.raises(ConnectionLostError, match="site's key"):
        connect(folder, site_key(tmp_path / "another"))


def test_a_server_with_another_certificate_is_not_spoken_to(folder, tmp_path):
    make_authority("another", tmp_path / "ca.crt", tmp_path / "ca.key")
    with pytest.raises(ConnectionLostError, match=r"cannot be reached.*certificate"):
        connect(folder, site_key(tmp_path / "key"), (tmp_path / "ca.crt").read_bytes())


def request(folder, path, scheme="https", **headers):
    context = ssl.create_default_context(cafile=folder.path / "ca.crt") if scheme == "https" else None
    asked = urllib.request.Request(f"{scheme}://{folder.address}{path}", b"", headers)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
    )
    return opener.open(asked, timeout=10)


def test_plain_http_is_refused(folder):
    with pytest.raises((urllib.error.URLError, OSError)):
        request(folder, "/v1/fleet/pull-messages", "http")


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/control/list-nodes", "/docs", "/openapi.json"]
)
def test_what_steers_a_federation_needs_its_key(folder, path):
    for headers in ({}, {"x-upcycled-key": "0" * 64}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            request(folder, path, **headers)
        assert refused.value.code == 403


def test_a_runs_seat_needs_the_key_too(folder, tmp_path):
    make_secret(tmp_path / "key")
    wrong = replace(folder.link, key=tmp_path / "key")
    with pytest.raises(Exception, match=r"401|403"):
        wrong._token(1)
    with pytest.raises(ConnectionLostError, match="status 403"):
        wrong.nodes()


def test_check_says_one_sentence_for_each_thing(folder, tmp_path):
    invitation = read_invitation(invite(folder, "site-1"))
    policy = policy_of(trial_policy(folder.experiment(), folder, "site-1", 1), tmp_path)
    found = {one.what: one for one in check_joining(invitation, policy, tmp_path)}
    assert {what: one.is_right for what, one in found.items()} == {
        "name": True,
        "port": True,
        "certificate and clock": True,
        "registration": False,
        "columns": True,
        "account": True,
    }
    assert "clocks differ" in found["certificate and clock"].said
    let_in(folder, "site-1", public_line(site_key(policy.state(tmp_path) / "node.key")))
    register(folder, "site-1")
    assert all(one.is_right for one in check_joining(invitation, policy, tmp_path))
    closed = replace(invitation, address=f"127.0.0.1:{free_port()}")
    found = {one.what: one for one in check_joining(closed, policy, tmp_path)}
    assert not found["port"].is_right
    assert "registration" not in found
    make_authority("another", tmp_path / "ca.crt", tmp_path / "ca.key")
    other = replace(invitation, certificate=(tmp_path / "ca.crt").read_text())
    found = {one.what: one for one in check_joining(other, policy, tmp_path)}
    assert has_all(found["certificate and clock"].said, "server's certificate", "invitation's")
    assert not next(iter(check_joining(replace(invitation, site="site-2"), policy, tmp_path))).is_right


def test_status_says_who_is_missing_and_why(folder):
    found = dict(status(folder))
    assert found["server"].startswith("answers at")
    assert "its key is not known yet" in found["site-3"]

"""A site's account: one charge buys one release, whatever is asked, wherever, and whenever a site dies."""

import json
import math
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.federation.in_process import changed, make_site
from tests.federation.test_hostile_server import STRICT, private, question
from upcycled.federation.messages import Refusal, Reply, digest_of, packed, unpacked
from upcycled.federation.site import site as kept_replies
from upcycled.federation.site import site as site_module
from upcycled.privacy.accounting import gdp_epsilon
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.accounts.account_file import AccountFile

DELTA = 1e-3


@pytest.fixture
def place(tmp_path):
    return tmp_path / "account"


@pytest.fixture
def site_in(federation, tmp_path, place):
    """Sites of one client, each in a policy folder of its own, with one account."""

    def made(folder="a", client=0):
        account = {"epsilon": 9.0, "delta": DELTA, "kind": "gaussian", "path": str(place)}
        table = {"privacy": STRICT, "simulation": False, "account": account}
        return make_site(federation, client, tmp_path / folder, **table)

    return made


@pytest.fixture
def asked(federation, site_in):
    return question(site_in(), federation, private())


class Post:
    """What left a site: different bytes are different releases."""

    def __init__(self):
        self.releases = set()

    def ask(self, site, request):
        reply = unpacked(site.reply(packed(request)))
        if isinstance(reply, Reply):
            self.releases.add(reply.vector.tobytes())
        return reply


def charges(place):
    return len(Account.read(place).charges)


def spent_epsilon(place, releases):
    """Return what an account states, and what so many releases cost."""
    account = Account.read(place)
    ratio = float((account.charges[0].charge.sensitivity / account.charges[0].charge.noise_std)[0])
    return account.epsilon("ann"), float(gdp_epsilon(mu=ratio * math.sqrt(releases), delta=DELTA))


@pytest.mark.parametrize("folders", [2, 9])
def test_a_reused_run_name_buys_no_second_release_in_another_policy_folder(folders, site_in, asked, place):
    """Colluding servers ask different questions under one (run, round, attempt)."""
    post = Post()
    replies = [
        post.ask(site_in(str(i)), changed(asked, model=asked.ask.model + np.float32(i), iteration=1 + i % 2))
        for i in range(folders)
    ]
    assert len(post.releases) == charges(place) == 1
    assert [type(reply) for reply in replies] == [Reply] + [Refusal] * (folders - 1)
    stated, true = spent_epsilon(place, len(post.releases))
    assert true <= stated * (1 + 1e-9)
    # The same question gets the same bytes there.
    for i in range(folders):
        assert isinstance(post.ask(site_in(str(i)), asked), Reply)
    assert len(post.releases) == charges(place) == 1


def test_the_same_rounds_asked_of_two_policy_folders_cost_what_left(site_in, asked, place):
    """Each server asks whichever folder the other one has not asked."""
    post, first, second = Post(), site_in("a"), site_in("b")
    for round in (1, 2, 3):
        for i, site in enumerate((first, second) if round % 2 else (second, first)):
            post.ask(site, changed(asked, round=round, iteration=2 * round - 1, model=asked.ask.model + np.float32(i)))
            post.ask(site, changed(asked, round=round, iteration=2 * round - 1, attempt=i + 1))
    assert len(post.releases) == charges(place)
    stated, true = spent_epsilon(place, len(post.releases))
    assert true <= stated * (1 + 1e-9)


def test_every_part_of_a_question_is_in_the_hash_that_its_charge_has(site_in, asked, place):
    assert isinstance(Post().ask(site_in(), asked), Reply)
    (charged,) = Account.read(place).charges
    assert charged.question == digest_of(packed(asked))
    other = {
        "terms": replace(asked.terms, run="another"),
        "clients": np.array([1]),
        "epochs": np.array([2]),
        "rows": np.array([1]),
        "iteration": 2,
        "round": 2,
        "attempt": 1,
        "a": 0.5,
        "model": asked.ask.model + np.float32(1),
        "b": asked.ask.model[None],
        "statistics": asked.ask.model,
        "clip_scale": 2.0,
        "shared": {"noise_std": 1.0},
    }
    parts = (asked, asked.ask, asked.ask.cohort, asked.ask.problem)
    assert set(other) == {name for part in parts for name in vars(part)} - {"ask", "cohort", "problem"}
    hashes = {digest_of(packed(changed(asked, **{name: value}))) for name, value in other.items()}
    assert len(hashes | {charged.question}) == 1 + len(other)
    terms = [replace(asked.terms, **one) for one in ({"config": "{}"}, {"seed": 9}, {"clients": 5})]
    assert len({digest_of(packed(replace(asked, terms=one))) for one in terms} | hashes) == len(hashes) + len(terms)


def test_a_site_that_is_killed_at_any_durable_step_never_releases_twice_for_one_charge(
    site_in, asked, place, monkeypatch
):
    """Before and after each line of the account, each file, and local work: then it is asked again, in both folders."""
    deadly_places = ((kept_replies, "write_whole"), (AccountFile, "_append"), (site_module, "answer"))

    class Killed(BaseException):
        pass

    def run(deadly):
        """Ask with a kill at one step; return how many steps were met."""
        steps = iter(range(10**6))

        def deadly_call(function):
            def call(*arguments, **options):
                if next(steps) == deadly:
                    raise Killed
                result = function(*arguments, **options)
                if next(steps) == deadly:
                    raise Killed
                return result

            return call

        post = Post()
        with monkeypatch.context() as patch:
            for owner, name in deadly_places:
                patch.setattr(owner, name, deadly_call(getattr(owner, name)))
            try:
                post.ask(site_in("a"), asked)
            except Killed:
                assert not post.releases
        count = next(steps)
        assert isinstance(post.ask(site_in("b"), asked), Reply)
        assert isinstance(post.ask(site_in("a"), asked), Reply)
        assert isinstance(post.ask(site_in("b"), asked), Reply)
        # Two charges at most, where it died so that nobody knows whether something left.
        assert 1 == len(post.releases) <= charges(place) <= 2
        shutil.rmtree(place)
        return count

    steps = run(-1)
    assert steps >= 12
    for deadly in range(steps):
        run(deadly)


def test_local_work_that_was_cut_off_is_done_again_for_its_charge(site_in, asked, place, monkeypatch):
    """A site that crashes in training and comes back does not spend its account on it."""
    with monkeypatch.context() as patch:
        patch.setattr(site_module, "answer", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                site_in().reply(packed(asked))
    assert isinstance(Post().ask(site_in(), asked), Reply)
    assert charges(place) == 1


@pytest.mark.parametrize("pattern", ["*.reply", "*.json", "*"])
def test_a_reply_that_was_deleted_is_paid_for_again(site_in, asked, place, pattern):
    post = Post()
    post.ask(site_in(), asked)
    for path in place.glob(f"runs/*/round-{pattern}"):
        path.unlink()
    post.ask(site_in(), asked)
    assert len(post.releases) == charges(place) == 2


def test_a_reply_that_the_account_has_no_charge_for_is_not_sent_for_free(site_in, asked, place):
    """The account was put back to what it was before."""
    post, second = Post(), changed(asked, round=2, iteration=3)
    post.ask(site_in(), asked)
    before = (place / "account.jsonl").read_bytes()
    post.ask(site_in(), second)
    (place / "account.jsonl").write_bytes(before)
    post.ask(site_in(), second)
    assert charges(place) == 2
    assert len(post.releases) == 3


def test_two_processes_with_one_account_that_are_asked_at_once_send_the_same_bytes(site_in, asked, place, monkeypatch):
    entered, go_on = threading.Event(), threading.Event()
    real, replies = site_module.answer, {}

    def slow(*arguments):
        entered.set()
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(site_module, "answer", slow)
    sites = [site_in("a"), site_in("b")]
    threads = [threading.Thread(target=lambda i=i: replies.update({i: sites[i].reply(packed(asked))})) for i in (0, 1)]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert replies[0] == replies[1]
    assert isinstance(unpacked(replies[0]), Reply)
    assert charges(place) == 1


def test_two_clients_of_one_account_in_one_run_are_charged_and_answered_each(site_in, federation, asked, place):
    post = Post()
    for client in (0, 1):
        assert isinstance(post.ask(site_in(client=client), changed(asked, client=client)), Reply)
    assert len(post.releases) == charges(place) == 2
    assert Account.read(place).clients == ("ann", "bob")


def test_the_latest_replies_are_kept_and_attempts_do_not_fill_the_disk(site_in, asked, place, monkeypatch):
    monkeypatch.setattr(kept_replies, "MOST_KEPT", 3)
    post = Post()
    for attempt in range(4):
        post.ask(site_in(), changed(asked, attempt=attempt))
    assert len(list(place.glob("runs/*/round-*.reply"))) == len(list(place.glob("runs/*/round-*.json"))) == 3
    assert isinstance(post.ask(site_in(), changed(asked, attempt=1)), Reply)
    assert len(post.releases) == charges(place) == 4
    post.ask(site_in(), changed(asked, attempt=0))  # its bytes are gone: a new release, and charged
    assert len(post.releases) == charges(place) == 5


def test_a_charge_keeps_its_question_and_a_line_with_another_form_of_it_is_damage(site_in, asked, place):
    Post().ask(site_in(), asked)
    text = (place / "account.jsonl").read_text()
    line = json.loads(text.splitlines()[-1])
    assert list(line)[:4] == ["kind", "study", "question", "entry"]
    account = Account.read(place)
    (charged,) = account.charges
    with pytest.raises(Exception, match=r"question.*'x', expected 64.*digits"):
        account.pay(1, charged.entry, None, "x")
    assert charges(place) == 1

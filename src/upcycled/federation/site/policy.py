"""A data holder's own file: where its data are, what may leave, and what it may ever cost.

The server has no say in any of it. What the file does not say is what protects more. Reading it needs neither torch nor
data: the process that is connected to the federation has none of either.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from upcycled._utils.files import make_private
from upcycled.config.tables import AsTuple, Count, Fraction, Place, Table, Word, from_validation, named
from upcycled.core.errors import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, InputError, reason_of

if TYPE_CHECKING:
    from upcycled.core.vectors import Shards
    from upcycled.data import FederatedData
    from upcycled.data.schema.schema import Schema
    from upcycled.privacy.accounts.account import Account


STATE = "site"
"""The folder beside a policy that holds its site's own files."""


SiteName = Annotated[str, Field(pattern=r"^[^\W_][\w.-]{0,63}$")]
SITE_NAME = "a name of letters, digits, '.', '_' and '-' that starts with a letter or digit"


class SiteData(Table):
    """Where a site's samples are: a table and its schema; or, to try things out, a client of an experiment's data."""

    path: Word | None = Field(default=None, description="the path of a table (.csv, .parquet, .xlsx)")
    schema_: Word | None = Field(default=None, alias="schema", description="the path of a schema (TOML)")
    test_fraction: Fraction = Field(default=0.0, description=FRACTION.phrase)
    public: bool = Field(default=False, description="true or false")
    experiment: Word | None = Field(default=None, description="the path of an experiment file")
    client: Annotated[int, NOT_NEGATIVE] | None = Field(default=None, description="a client's number")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.path is None) == (self.experiment is None) or (self.experiment is None) != (self.client is None):
            raise InputError("must have a path, or an experiment and a client of it", field="data")
        return self


class LeavingTable(Table):
    """What may leave a site, and how much noise must be in it."""

    mechanisms: Annotated[tuple[Word, ...], AsTuple] = Field(
        default=(), description="a list of mechanisms such as 'erm_output'; 'none' lets models go as they are"
    )
    least_noise: Annotated[float, POSITIVE] | None = None
    """Noise std over sensitivity of one release, at least."""
    most_epsilon: Annotated[float, POSITIVE] | None = None
    """Of one pure release."""
    norm_bound: Annotated[float, POSITIVE] | None = None
    """The largest norm that features may be scaled to."""
    trusts_server: bool = Field(default=False, description="true or false")
    """Whether mechanisms may be accepted whose noise the server adds."""
    evaluations: bool = Field(default=False, description="true or false")
    """Whether exact scores on test samples are given: nothing covers them."""
    code: Annotated[tuple[Word, ...], AsTuple] = Field(
        default=(), description="a list of names such as 'package.module:Name'"
    )
    """Code of its own installation that a run may name."""


class AccountTable(Table):
    """The account that pays, opened with these terms where there is none yet."""

    path: Word | None = Field(default=None, description="the path of an account's folder")
    epsilon: Annotated[float, POSITIVE]
    delta: Annotated[float, FRACTION]
    kind: Word = Field(default="mixed", description="'mixed', 'gaussian' or 'pure'")


class LimitsTable(Table):
    """The largest run that a site takes part in: memory and time grow with these numbers of a server's."""

    clients: Count = Field(default=1_000, description=COUNT.phrase)
    iterations: Count = Field(default=10_000, description=COUNT.phrase)
    epochs: Count = Field(default=1_000, description=COUNT.phrase)
    """Of local work in one data round."""
    steps: Count = Field(default=10_000_000, description=COUNT.phrase)
    """Gradients of minibatches in one data round, times the iterations."""
    parameters: Count = Field(default=10_000_000, description=COUNT.phrase)
    """Of the model."""


class Policy(Table):
    """A data holder's file, checked."""

    name: SiteName = Field(description=SITE_NAME)
    simulation: bool = Field(default=False, description="true or false")
    """Whether seeded noise is accepted, which protects nobody."""
    data: SiteData = Field(description="a table [data] with a path")
    privacy: LeavingTable = Field(default=LeavingTable(), description="a table [privacy]")
    account: AccountTable | None = Field(default=None, description="a table [account] with epsilon and delta")
    limits: LimitsTable = Field(default=LimitsTable(), description="a table [limits]")

    def state(self, folder: Path) -> Path:
        """Return where the site keeps what is its own; its owner's alone."""
        place = folder / STATE / self.name
        make_private(place)
        return place


def read_policy(path: str | os.PathLike[str], data: str | None = None) -> Policy:
    """Read a site's file; ``data`` takes the place of its ``data.path``.

    Raises:
        InputError: one sentence with file, key, value and what would be right.
    """
    place = Path(path)
    with named(str(path)):
        try:
            raw = tomllib.loads(place.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"the file cannot be read ({error.strerror}), but it must be a site's policy") from None
        except ValueError as error:
            raise InputError(f"the file must be valid TOML, but it is not: {reason_of(error)}") from None
        if data is not None:
            raw["data"] = {key: value for key, value in dict(raw.get("data", {})).items() if key != "path"}
            raw["data"]["path"] = os.path.abspath(data)
        return policy_of(raw, place.parent)


def policy_of(raw: dict[str, Any], folder: Path) -> Policy:
    """Check the content of a site's file; relative paths in it are relative to ``folder``."""
    raw = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    parsed: dict[str, Any] = dict(raw)
    tables: dict[str, type[Table]] = {
        "data": SiteData,
        "privacy": LeavingTable,
        "account": AccountTable,
        "limits": LimitsTable,
    }
    for name, table in tables.items():
        if name not in raw:
            continue
        held = raw[name]
        if not isinstance(held, dict):
            raise InputError(field=name, value=held, must=f"a table [{name}]")
        for key in ("path", "schema", "experiment"):
            if isinstance(held.get(key), str):
                held[key] = os.path.abspath(folder / Path(held[key]).expanduser())
        try:
            parsed[name] = table.model_validate(held)
        except ValidationError as error:
            raise from_validation(error, table, Place(name, f"[{name}]"), held) from None
    try:
        return Policy.model_validate(parsed)
    except ValidationError as error:
        raise from_validation(error, Policy, Place(), raw) from None


def site_data(policy: Policy, schema: Schema | None = None) -> FederatedData:
    """Return a site's own samples, as the one client that they are.

    Args:
        policy: its file.
        schema: what columns mean, where its file names no schema of its own: an invitation's.

    Raises:
        InputError: in one sentence, if they cannot be read, or are those of several.
    """
    from upcycled.config.experiment import load_config
    from upcycled.data import load
    from upcycled.data.schema.schema import as_schema

    said = policy.data
    if said.experiment is not None and said.client is not None:
        whole = load_config(said.experiment).build_data()
        if said.client >= whole.num_clients:
            raise InputError(
                field="data.client", value=said.client, must=f"below {whole.num_clients}, the experiment's clients"
            )
        data = _of_client(whole, said.client)
    else:
        assert said.path is not None  # as checked
        meaning = schema if said.schema_ is None else as_schema(said.schema_)
        if meaning is None:
            raise InputError(field="data.schema", must="the path of a schema: the invitation brings none")
        # Data of any content load alike: what is wrong in them is for their holder, and no reason to refuse a round.
        data = load([said.path], schema=meaning, test_fraction=said.test_fraction, repair=True, public=said.public)
    if data.num_clients != 1:
        raise InputError(
            f"holds the rows of {data.num_clients} clients, but a site is one client: split the file", field="data.path"
        )
    return replace(data, client_names=(policy.name,), client_ids=None)


def grave_problems(policy: Policy, schema: Schema | None = None) -> list[str]:
    """Return what is so wrong with the labels that a model would learn something else, for the holder alone.

    A run takes such data as any other, for whether it does would tell what is in them.
    """
    from upcycled.data.loading import raw_tables
    from upcycled.data.schema.encoding import encode
    from upcycled.data.schema.schema import as_schema

    said = policy.data
    meaning = schema if said.schema_ is None else as_schema(said.schema_)
    if said.path is None or meaning is None:
        return []
    tables = raw_tables([said.path], meaning)
    return [one.said for table in tables for one in encode(meaning, table, with_labels=True).problems if one.is_grave]


def account_of(policy: Policy, folder: Path) -> Account:
    """Return the account that pays, opened with the file's terms where there is none yet.

    Raises:
        InputError: in one sentence, if the file names none, or there is one with other terms.
    """
    from upcycled.privacy.accounts.account import Account

    said = policy.account
    if said is None:
        raise InputError(field="account", must="a table [account] with epsilon and delta: real noise is charged to one")
    place = Path(said.path) if said.path is not None else policy.state(folder) / "account"
    if not (place / "account.jsonl").exists():
        return Account.open(place, epsilon=said.epsilon, delta=said.delta, kind=said.kind)
    account = Account.read(place)
    if (account.terms.epsilon, account.terms.delta) != (said.epsilon, said.delta):
        raise InputError(
            f"account '{place}' was opened with epsilon {account.terms.epsilon:g} at delta {account.terms.delta:g}, "
            "which is fixed: the policy must say the same",
            field="account",
        )
    return account


def _of_client(whole: FederatedData, client: int) -> FederatedData:
    from upcycled.core.vectors import Shards

    def own(shards: Shards | None) -> Shards | None:
        if shards is None:
            return None
        x, y = shards.client(client)
        return Shards(x.copy(), y.copy(), np.array([0, len(y)])) if len(y) else None

    train = own(whole.train)
    assert train is not None  # no client is without training samples
    return replace(whole, train=train, test=own(whole.test), validation=None, notes=())

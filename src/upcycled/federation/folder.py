"""A federation's folder at its server: the experiment, who is invited, certificates, results.

::

    federation.toml     address, sites, how long rounds wait
    experiment.toml     the complete experiment file
    ca.crt, server.crt  what sites trust, and what the server shows
    sites/SITE.pub      the keys that are let in
    invitations/        one file for each site, without any secret
    private/            0700: keys, Flower's database, what runs here, logs
    results/            what `upcycled run` writes
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, ValidationError

from upcycled._utils.files import PRIVATE, make_private, write_whole
from upcycled.config.experiment import Experiment, load_config
from upcycled.config.tables import AsTuple, Place, Table, Word, from_validation, named, table_of
from upcycled.core.errors import InputError, Limits, reason_of
from upcycled.federation.certificates import (
    fingerprint,
    make_authority,
    make_secret,
    make_server_certificate,
    public_bytes,
)
from upcycled.federation.coordinator import check_spec, schema_of
from upcycled.federation.exchange import Patience
from upcycled.federation.site.policy import SITE_NAME, SiteName
from upcycled.federation.transport import Link

FEDERATION, EXPERIMENT = "federation.toml", "experiment.toml"
PORT = Limits(at_least=1, at_most=65535, integer=True)
PATIENCE = table_of(Patience)


class FederationFile(Table):
    """What a federation's own file says."""

    name: Word = Field(description="a text in quotes")
    host: Word = Field(description="the name or address that sites reach the server by")
    port: Annotated[int, PORT]
    listen: Word = Field(default="127.0.0.1", description="the address that the server listens at")
    sites: Annotated[tuple[SiteName, ...], AsTuple] = Field(description=f"a list of names, each {SITE_NAME}")
    scores: bool = False
    """Whether sites are asked for exact scores after iterations that ``eval_every`` names."""
    rounds: PATIENCE = Field(default=PATIENCE(), description="a table [rounds]")  # type: ignore[valid-type]

    @property
    def patience(self) -> Patience:
        """How long rounds wait."""
        made: Patience = self.rounds.build()  # type: ignore[attr-defined]
        return made


@dataclass(frozen=True)
class FederationFolder:
    """A federation at its server."""

    path: Path
    file: FederationFile

    @property
    def private(self) -> Path:
        """What is its operator's alone."""
        return self.path / PRIVATE

    @property
    def address(self) -> str:
        """Where sites reach the server."""
        return f"{self.file.host}:{self.file.port}"

    @property
    def link(self) -> Link:
        """The way to Flower's server for whoever runs the federation: from its own machine."""
        is_local = self.file.listen in ("0.0.0.0", "::", "127.0.0.1")
        host = "127.0.0.1" if is_local else self.file.listen
        return Link(f"{host}:{self.file.port}", self.path / "ca.crt", self.private / "federation.key")

    def experiment(self, overrides: Sequence[str] = ()) -> Experiment:
        """Return what is to be run; its results lie in this folder."""
        found = load_config(self.path / EXPERIMENT, overrides)
        return found.model_copy(update={"results": str(self.path / "results")})

    def keys(self) -> dict[str, str]:
        """Return the public keys that are let in, by site."""
        return {path.stem: path.read_text().strip() for path in sorted((self.path / "sites").glob("*.pub"))}


def make_folder(
    experiment: Experiment, folder: Path, sites: Sequence[str], host: str, port: int, listen: str
) -> FederationFolder:
    """Write a new federation's folder.

    Raises:
        InputError: in one sentence, if there is one already, or the experiment cannot be run by one.
    """
    if (folder / FEDERATION).exists():
        raise InputError(f"{folder} has a federation already: choose another folder, or use that one")
    for seed in experiment.seeds:
        check_spec(experiment.spec(seed))
    raw: dict[str, Any] = {"name": experiment.name, "host": host, "port": port, "listen": listen, "sites": list(sites)}
    if len(set(sites)) != len(sites) or not sites:
        raise InputError(field="sites", value=list(sites), must="one or more different names")
    made = FederationFolder(folder, _parsed(raw))
    make_private(made.private)
    own = made.private
    make_authority(experiment.name, folder / "ca.crt", own / "ca.key")
    hosts = list(dict.fromkeys([host, "127.0.0.1", "localhost", *([] if listen in ("0.0.0.0", "::") else [listen])]))
    make_server_certificate(hosts, (folder / "ca.crt", own / "ca.key"), folder / "server.crt", own / "server.key")
    make_secret(own / "federation.key")
    write_whole(folder / EXPERIMENT, experiment.resolved_toml().encode())
    rounds = {name: value for name, value in vars(Patience()).items() if name != "poll"}
    write_whole(folder / FEDERATION, tomli_w.dumps({**raw, "rounds": rounds}).encode())
    return made


def open_folder(path: str | os.PathLike[str]) -> FederationFolder:
    """Read a federation's folder.

    Raises:
        InputError: in one sentence, if there is none.
    """
    place = Path(path) / FEDERATION
    with named(str(place)):
        try:
            raw = tomllib.loads(place.read_text(encoding="utf-8"))
        except OSError:
            raise InputError(
                "the file cannot be read, but a federation's folder has it: `upcycled federation init` makes one"
            ) from None
        except ValueError as error:
            raise InputError(f"the file must be valid TOML, but it is not: {reason_of(error)}") from None
        return FederationFolder(Path(path), _parsed(raw))


def _parsed(raw: dict[str, Any]) -> FederationFile:
    parsed = dict(raw)
    try:
        if isinstance(raw.get("rounds"), dict):
            parsed["rounds"] = PATIENCE.model_validate(raw["rounds"])
    except ValidationError as error:
        raise from_validation(error, PATIENCE, Place("rounds", "[rounds]"), raw["rounds"]) from None
    try:
        return FederationFile.model_validate(parsed)
    except ValidationError as error:
        raise from_validation(error, FederationFile, Place(), raw) from None


def invite(folder: FederationFolder, site: str) -> Path:
    """Write a site's invitation, and return where it is.

    Raises:
        InputError: in one sentence, if the site is not one of the federation's.
    """
    _check_site(folder, site)
    certificate = (folder.path / "ca.crt").read_bytes()
    schema = schema_of(folder.experiment())
    document = {
        "federation": folder.file.name,
        "site": site,
        "address": folder.address,
        "fingerprint": fingerprint(certificate),
        "certificate": certificate.decode(),
        **({} if schema is None else {"schema": schema.plain()}),
    }
    path = folder.path / "invitations" / f"{site}.toml"
    write_whole(path, tomli_w.dumps(document).encode())
    return path


def let_in(folder: FederationFolder, site: str, line: str) -> None:
    """Keep a site's public key; a server that runs is told of it by whoever calls this.

    Raises:
        InputError: in one sentence, for what is no key, and for another key than the one that is there.
    """
    _check_site(folder, site)
    public_bytes(line)
    path = folder.path / "sites" / f"{site}.pub"
    if path.exists() and path.read_text().strip() != line.strip():
        raise InputError(f"{path} holds another key of site '{site}': remove it if that site has made a new one")
    write_whole(path, f"{line.strip()}\n".encode())


def _check_site(folder: FederationFolder, site: str) -> None:
    if site not in folder.file.sites:
        known = ", ".join(folder.file.sites)
        raise InputError(field="SITE", value=site, must=f"one of the federation's sites ({known}): see {FEDERATION}")

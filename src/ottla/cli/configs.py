"""`ottla configs`: flags and lines are those of Apache Kafka's kafka-configs.sh. A client like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from ottla import __version__
from ottla.cli import config_users as users
from ottla.cli.config_entities import (
    BROKERS,
    CLIENTS,
    DEFAULT,
    IPS,
    LOGGERS,
    TOPICS,
    TYPES,
    USERS,
    Entity,
    check_alter,
    entities,
    names,
    settings,
)
from ottla.cli.output import Cell, Column, one_line, print_json, print_rows
from ottla.cli.tool import Failure, OneLine, cluster_options, one_action, only_with
from ottla.client.admin.configs import (
    BROKER,
    BROKER_LOGGER,
    DELETE,
    TOPIC,
    Change,
    Config,
    alter_configs,
    describe_configs,
)
from ottla.client.admin.nodes import check_broker
from ottla.client.cluster import Cluster

_RESOURCES = {TOPICS: TOPIC, BROKERS: BROKER, LOGGERS: BROKER_LOGGER}
_COLUMNS = (
    Column("Entity", "entity"),
    Column("Setting", "name"),
    Column("Value", "value"),
    Column("Source", "source"),
)


class _Command(OneLine):
    """Keeps --entity-default in its place among the names: it stands for the name of the type before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"--entity-name={DEFAULT}" if part == "--entity-default" else part for part in args])


class Settings(NamedTuple):
    """Whose settings they are, and the settings."""

    entity: Entity
    configs: list[Config]


@click.command("configs", cls=_Command)
@click.version_option(__version__, prog_name="ottla")
@click.option("--describe", is_flag=True, help="Show settings.")
@click.option("--alter", is_flag=True, help="Change settings.")
@click.option("--all", "all_", is_flag=True, help="With --describe: also those that nobody set.")
@click.option("--entity-type", multiple=True, metavar="TYPE", help=f"One of {', '.join(TYPES)}. Twice for a user's client.")
@click.option("--entity-name", multiple=True, metavar="NAME", help="The name of the entity of the type before it.")
@click.option("--entity-default", is_flag=True, help="The default of the type before it, instead of a name.")
@click.option("--topic", metavar="NAME", help="A topic.")
@click.option("--client", metavar="ID", help="A client id.")
@click.option("--client-defaults", is_flag=True, help="Clients without settings of their own.")
@click.option("--user", metavar="NAME", help="A user.")
@click.option("--user-defaults", is_flag=True, help="Users without settings of their own.")
@click.option("--broker", metavar="ID", help="A broker.")
@click.option("--broker-defaults", is_flag=True, help="All brokers.")
@click.option("--broker-logger", metavar="ID", help="The loggers of a broker.")
@click.option("--ip", metavar="ADDRESS", help="An address that connections come from.")
@click.option("--ip-defaults", is_flag=True, help="Addresses without settings of their own.")
@click.option("--add-config", metavar="NAME=VALUE,...", help="Settings to set; a list stands in brackets.")
@click.option("--add-config-file", metavar="FILE", help="A properties file of settings to set.")
@click.option("--delete-config", metavar="NAME,...", help="Settings to delete.")
@click.option("--force", is_flag=True, hidden=True)
@cluster_options
def command(
    cluster: Cluster,
    describe: bool,
    alter: bool,
    all_: bool,
    entity_type: Sequence[str],
    entity_name: Sequence[str],
    entity_default: bool,
    topic: str | None,
    client: str | None,
    client_defaults: bool,
    user: str | None,
    user_defaults: bool,
    broker: str | None,
    broker_defaults: bool,
    broker_logger: str | None,
    ip: str | None,
    ip_defaults: bool,
    add_config: str | None,
    add_config_file: str | None,
    delete_config: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show and change settings of topics and brokers, quotas of clients, users and addresses, credentials of users.

    Flags and output are those of kafka-configs.sh. Changes take effect at once.
    """
    action = one_action(describe=describe, alter=alter)
    only_with(action, all_="describe", add_config="alter", add_config_file="alter", delete_config="alter")
    flags = {TOPICS: topic, CLIENTS: client, USERS: user, BROKERS: broker, LOGGERS: broker_logger, IPS: ip}
    found = entities(
        entity_type,
        entity_name,
        flags,
        {CLIENTS: client_defaults, USERS: user_defaults, BROKERS: broker_defaults, IPS: ip_defaults},
    )
    if action == "describe":
        if found[0].type in _RESOURCES:
            _print_settings(_described(cluster, found[0], everything=all_), everything=all_, as_json=as_json)
        else:
            _print_users(*users.describe(cluster, found), as_json=as_json)
        return
    added, deleted = settings(add_config, add_config_file), names(delete_config)
    check_alter(found, added, deleted)
    if found[0].type in _RESOURCES:
        _alter(cluster, found[0], added, deleted)
    else:
        users.alter(cluster, found, added, deleted)
    (first, *_) = found
    if as_json:
        print_json([{**one._asdict(), "updated": True} for one in found])
    elif first.name == DEFAULT:
        click.echo(f"Completed updating default config for {first.type} in the cluster.")
    else:
        click.echo(one_line(f"Completed updating config for {first.kind} {first.name}."))


# ---- topics and brokers --------------------------------------------------------------------------------------------------


def _described(cluster: Cluster, meant: Entity, *, everything: bool) -> list[Settings]:
    """Settings of one, or of all of its type; of brokers also what all have in common."""
    if meant.type != TOPICS and meant.name:
        check_broker(cluster, int(meant.name))
    wanted = [meant.name] if meant.name is not None else sorted(cluster.topics()) if meant.type == TOPICS else _brokers(cluster)
    if meant.name is None and meant.type == BROKERS:
        wanted.append(DEFAULT)
    kind = _RESOURCES[meant.type]
    found = describe_configs(cluster, [(kind, name or "") for name in wanted]) if wanted else {}
    described = []
    for name in wanted:
        entity = Entity(meant.type, name)
        shown = sorted(found[kind, name or ""])
        described.append(Settings(entity, [one for one in shown if everything or _is_own(one, entity)]))
    return described


def _brokers(cluster: Cluster) -> list[str | None]:
    return [str(broker) for broker in sorted(cluster.brokers())]


def _is_own(one: Config, entity: Entity) -> bool:
    """Whether somebody set it for just this entity while the cluster ran."""
    if entity.type == TOPICS:
        return one.source == "DYNAMIC_TOPIC_CONFIG"
    if entity.type == LOGGERS:
        return True
    return one.source == ("DYNAMIC_DEFAULT_BROKER_CONFIG" if entity.name == DEFAULT else "DYNAMIC_BROKER_CONFIG")


def _alter(cluster: Cluster, entity: Entity, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    # Also where nothing is deleted: that the entity is there is to be told before anything is said of its settings.
    (known,) = _described(cluster, entity, everything=False)
    unset = [name for name in deleted if name not in {one.name for one in known.configs}]
    if unset:
        raise Failure(f"Nothing is set that could be deleted: {', '.join(unset)}.")
    changes = [*(Change(name, value) for name, value in added.items()), *(Change(name, None, DELETE) for name in deleted)]
    for refused in alter_configs(cluster, {(_RESOURCES[entity.type], entity.name or ""): changes}).values():
        if refused is not None:
            raise refused


# ---- output --------------------------------------------------------------------------------------------------------------


def _print_settings(found: Sequence[Settings], *, everything: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    **entity._asdict(),
                    "configs": [{**one._asdict(), "synonyms": [other._asdict() for other in one.synonyms]} for one in configs],
                }
                for entity, configs in found
            ]
        )
        return
    rows: list[tuple[Cell, ...]] = []
    lines = []
    for entity, configs in found:
        which = "All" if everything else "Dynamic"
        whose = f"{which} configs for {entity.kind} {entity.name} are:"
        lines.append(one_line(f"Default configs for {entity.type} in the cluster are:" if entity.name == DEFAULT else whose))
        for one in configs:
            synonyms = ", ".join(f"{other.source}:{other.name}={_value(other.value)}" for other in one.synonyms)
            sensitive = str(one.sensitive).lower()
            lines.append(one_line(f"  {one.name}={_value(one.value)} sensitive={sensitive} synonyms={{{synonyms}}}"))
            rows.append((f"{entity.kind} {entity.name or '(default)'}", one.name, one.value, one.source))
    print_rows(_COLUMNS, rows, lines=lines)


def _value(value: str | None) -> str:
    return "null" if value is None else value


def _print_users(quotas: Sequence[users.Quotas], scram: Sequence[users.Scram], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                *({"entity": one.entity, "quotas": one.values} for one in quotas),
                *({"entity": {"user": one.user}, "scram": [has._asdict() for has in one.credentials]} for one in scram),
            ]
        )
        return
    rows: list[tuple[Cell, ...]] = []
    for quota in quotas:
        whose = ", ".join(f"{kind} {name or '(default)'}" for kind, name in quota.entity.items())
        rows += [(whose, key, value, None) for key, value in quota.values.items()]
    for user in scram:
        rows += [(f"user {user.user}", one.mechanism, f"iterations={one.iterations}", None) for one in user.credentials]
    print_rows(_COLUMNS, rows, lines=[one_line(str(one)) for one in (*quotas, *scram)])

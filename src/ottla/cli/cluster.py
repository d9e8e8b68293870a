"""`ottla cluster`: a cluster on this machine, to develop against and to break."""

from __future__ import annotations

import os
import shutil

import click

from ottla.cli.local_cluster import LocalCluster, new_cluster
from ottla.cli.output import Column, print_json, print_rows
from ottla.cli.tool import Failure, Tool, connect, json_option
from ottla.client.admin.nodes import ClusterDescription, describe_cluster
from ottla.client.cluster import Cluster

_DIRECTORY = "./ottla-cluster"
_ENDPOINTS = (
    Column("ID", "id"),
    Column("HOST", "host"),
    Column("PORT", "port"),
    Column("RACK", "rack"),
    Column("STATE", "state"),
    Column("ENDPOINT_TYPE", "endpointType"),
)


@click.group("cluster", cls=Tool, no_args_is_help=True)
@click.option("--directory", default=_DIRECTORY, show_default=True, help="Where the cluster's data and logs are.")
@click.pass_context
def command(ctx: click.Context, directory: str) -> None:
    """Run a cluster of several brokers on this machine, with a ZooKeeper; ask any cluster for its id and its brokers.

    ZooKeeper is started from the jars of the installed pyspark, which needs Java 17, unless an address is given. `cluster-id`
    and `list-endpoints` are those of Apache Kafka's kafka-cluster.sh.
    """
    ctx.obj = os.path.abspath(directory)


@command.command()
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(1, 100), help="How many brokers.")
@click.option("--zookeeper", metavar="HOST:PORT[/CHROOT]", help="A ZooKeeper that runs already.")
@click.option("--port", default=9092, show_default=True, type=click.IntRange(0, 65000), help="Of the first broker; 0: any.")
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting for all brokers. Repeatable.")
@json_option
@click.pass_obj
def up(directory: str, brokers: int, zookeeper: str | None, port: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Start a cluster, or the parts of it that do not run."""
    say = _silence if as_json else click.echo
    settings: dict[str, str] = {}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key:
            raise Failure(f"--override {override} is not valid: allowed is KEY=VALUE")
        settings[key.strip()] = value.strip()
    if os.path.exists(os.path.join(directory, "cluster.json")):
        cluster = LocalCluster.load(directory)
        say(f"There is a cluster of {len(cluster.brokers)} in {directory}: starting what does not run")
    else:
        replicated = ("default", "offsets.topic", "transaction.state.log")
        replicas = {f"{what}.replication.factor": str(min(brokers, 3)) for what in replicated}
        cluster = new_cluster(
            directory, brokers, zookeeper, port, {**replicas, "transaction.state.log.min.isr": str(min(brokers, 2)), **settings}
        )
    if cluster.own_zookeeper is not None:
        cluster.start_zookeeper()
        say(f"ZooKeeper at {cluster.zookeeper}")
    started = [number for number in cluster.brokers if not cluster.alive(number)]
    for number in started:
        cluster.start_broker(number)
    for number in started:
        cluster.wait_for_broker(number)
        say(f"broker {number} at {cluster.address_of(number)}")
    say(f"bootstrap servers: {cluster.bootstrap_servers}")
    if as_json:
        rows = [{**_running(cluster, number), "started": number in started} for number in cluster.brokers]
        print_json({"zookeeper": cluster.zookeeper, "brokers": rows, "bootstrapServers": cluster.bootstrap_servers})


def _running(cluster: LocalCluster, number: int) -> dict[str, object]:
    return {"id": number, "address": cluster.address_of(number), "pid": cluster.brokers[number].pid}


def _silence(_: str) -> None:
    """What is said to people while a program waits for its JSON."""


@command.command()
@json_option
@click.pass_obj
def status(directory: str, as_json: bool) -> None:
    """Show what runs, who is the controller, and which partitions lack replicas or a leader."""
    cluster = LocalCluster.load(directory)
    living = {number: cluster.alive(number) for number in cluster.brokers}
    controller, leads, missing, leaderless = _seen_from_inside(cluster, living)
    rows = [
        {
            "id": number,
            "address": cluster.address_of(number),
            "pid": process.pid if living[number] else None,
            "state": "running" if living[number] else "stopped",
            "controller": number == controller,
            "leads": leads.get(number, 0),
        }
        for number, process in cluster.brokers.items()
    ]
    if as_json:
        print_json({"zookeeper": cluster.zookeeper, "brokers": rows, "under_replicated": missing, "without_leader": leaderless})
        return
    state = "" if cluster.own_zookeeper is None else " (running)" if cluster.zookeeper_alive() else " (stopped)"
    click.echo(f"ZooKeeper at {cluster.zookeeper}{state}")
    for row in rows:
        role = ", controller" if row["controller"] else ""
        process = f", process {row['pid']}" if row["pid"] else ""
        click.echo(f"broker {row['id']} at {row['address']}: {row['state']}{process}{role}, leads {row['leads']} partitions")
    for name in missing:
        click.echo(f"{'without a leader' if name in leaderless else 'under-replicated'}: {name}")


def _seen_from_inside(cluster: LocalCluster, living: dict[int, bool]) -> tuple[int, dict[int, int], list[str], list[str]]:
    """The controller, how many partitions each broker leads, which lack replicas, and of those the ones that nobody leads.

    Nothing where nobody answers.
    """
    addresses = ",".join(f"127.0.0.1:{cluster.brokers[number].port}" for number, lives in living.items() if lives)
    if not addresses:
        return -1, {}, [], []
    with Cluster({"bootstrap.servers": addresses, "default.api.timeout.ms": 10_000}) as remote:
        metadata = remote.metadata()
    leads: dict[int, int] = {}
    missing: list[str] = []
    leaderless: list[str] = []
    for topic in metadata.topics:
        for partition in topic.partitions:
            leads[partition.leader_id] = leads.get(partition.leader_id, 0) + 1
            name = f"{topic.name}-{partition.partition_index}"
            if len(partition.isr_nodes) < len(partition.replica_nodes) or partition.leader_id < 0:
                missing.append(name)
            if partition.leader_id < 0:
                leaderless.append(name)
    return metadata.controller_id, leads, missing, leaderless


@command.command()
@click.option("--remove", is_flag=True, help="Remove the data too.")
@json_option
@click.pass_obj
def down(directory: str, remove: bool, as_json: bool) -> None:
    """Stop everything; data stay unless they are to be removed."""
    say = _silence if as_json else click.echo
    cluster = LocalCluster.load(directory)
    stopped = []
    for ended in cluster.stop():
        stopped.append(ended)
        say("stopped ZooKeeper" if ended is None else f"stopped broker {ended}")
    if remove:
        shutil.rmtree(directory)
        say(f"removed {directory}")
    if as_json:
        brokers = [number for number in stopped if number is not None]
        print_json({"brokers": brokers, "zookeeper": None in stopped, "removed": remove})


@command.command()
@click.argument("number", metavar="ID", type=int)
@json_option
@click.pass_obj
def kill(directory: str, number: int, as_json: bool) -> None:
    """End a broker with kill -9, to see what happens."""
    LocalCluster.load(directory).kill_broker(number)
    if as_json:
        print_json({"id": number, "killed": True})
    else:
        click.echo(f"killed broker {number}")


@command.command()
@click.argument("number", metavar="ID", type=int)
@json_option
@click.pass_obj
def start(directory: str, number: int, as_json: bool) -> None:
    """Start a broker that does not run."""
    cluster = LocalCluster.load(directory)
    cluster.start_broker(number)
    cluster.wait_for_broker(number)
    if as_json:
        print_json(_running(cluster, number))
    else:
        click.echo(f"broker {number} at {cluster.address_of(number)}")


# ---- any cluster ---------------------------------------------------------------------------------------------------------

_bootstrap = click.option("--bootstrap-server", "-b", required=True, metavar="HOST:PORT[,...]", help="Brokers to ask first.")
_config = click.option("--config", "-c", metavar="FILE", help="A properties file of an admin client.")


def _described(bootstrap_server: str, config: str | None) -> ClusterDescription:
    with connect(bootstrap_server, config) as remote:
        return describe_cluster(remote)


@command.command("cluster-id")
@_bootstrap
@_config
@json_option
def cluster_id(bootstrap_server: str, config: str | None, as_json: bool) -> None:
    """Show the id of a cluster."""
    found = _described(bootstrap_server, config)
    if as_json:
        print_json({"clusterId": found.id, "controller": found.controller})
    elif found.id is None:
        click.echo("No cluster ID found. The Kafka version is probably too old.")
    else:
        click.echo(f"Cluster ID: {found.id}")


@command.command("list-endpoints")
@_bootstrap
@_config
@json_option
def list_endpoints(bootstrap_server: str, config: str | None, as_json: bool) -> None:
    """List the brokers of a cluster."""
    nodes = _described(bootstrap_server, config).brokers
    rows = [(one.id, one.host, one.port, one.rack, "unfenced", "broker") for one in nodes]
    cells = [["null" if cell is None else str(cell) for cell in row] for row in rows]
    texts = [[column.title for column in _ENDPOINTS], *cells]
    host, rack = (max(len(line[at]) for line in texts) for at in (1, 3))
    widths = (10, host, 10, rack, 10, 15)
    lines = (" ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in texts)
    print_rows(_ENDPOINTS, rows, as_json=as_json, lines=lines)

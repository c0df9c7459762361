"""Connection to a Ray cluster, for the commands with `--cluster`."""

import logging
import os
import socket
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

from headwise.errors import UserError, first_line

logger = logging.getLogger(__name__)

#: Seconds to wait for the head of a cluster. `ray.init` waits for minutes, and then ends the process.
CONNECT_TIMEOUT = 10.0

#: Characters of a message of Ray that are logged.
MESSAGE_LENGTH = 200

#: Environment variables of the command that also hold for its tasks; in addition to all that begin with HEADWISE_.
FORWARDED_VARIABLES = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")

#: Variables that must not become part of Ray's runtime environment, which its dashboard and its logs show.
SECRET_VARIABLES = ("HEADWISE_STORAGE",)


def add_cluster_option(parser: ArgumentParser, purpose: str) -> None:
    """Add `--cluster auto|ADDRESS`.

    Args:
        parser: the parser.
        purpose: what the command does on the cluster, for the help text.
    """
    parser.add_argument(
        "--cluster",
        metavar="auto|ADDRESS",
        help=f"{purpose} on this Ray cluster; auto: the cluster of RAY_ADDRESS or of this machine; HOST:PORT: the "
        "address that ray start printed (default: this machine, without Ray)",
    )


@contextmanager
def connected_to_cluster(address: str) -> Iterator[None]:
    """Connect this process to a Ray cluster, and disconnect at the end, which ends all of its tasks.

    A process that is already connected, for example as a job of Ray, stays connected.

    Args:
        address: `auto`, or the HOST:PORT of the cluster's head.

    Raises:
        UserError: Ray is not installed, no cluster answers, or this machine is not one of its nodes.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    head = find_head(address)
    variables = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("HEADWISE_") or name in FORWARDED_VARIABLES) and name not in SECRET_VARIABLES
    }
    environment = {"env_vars": variables} if variables else None
    ray._private.worker.print_to_stdstream = log_ray_message
    try:
        ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise UserError(
            f"--cluster {address}: {reason}; this machine must be a node of the cluster (ray start --address={head})"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def import_ray() -> Any:
    """Return the module of Ray.

    Raises:
        UserError: Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise UserError("--cluster: needs Ray; pip install 'headwise[cluster]'") from None
    return ray


def check_cluster(address: str) -> None:
    """Check that a cluster can be used, before anything is written.

    Raises:
        UserError: Ray is not installed, or no cluster answers.
    """
    if not import_ray().is_initialized():
        find_head(address)


def log_ray_message(data: Any, ignore_prefix: bool = False) -> None:
    """Log the first line of a message of Ray, such as the death of a worker, which Ray prints to stdout."""
    for text in data["lines"]:
        first_line = text.strip().partition("\n")[0].partition(" To troubleshoot")[0].removesuffix(" Error:")
        logger.warning("Ray: %s", shorten(first_line, MESSAGE_LENGTH, placeholder=" …"))


def find_head(address: str) -> str:
    """Return the HOST:PORT of a cluster's head that answers.

    Raises:
        UserError: there is no cluster, or it does not answer.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    start = "start one with: ray start --head"
    try:
        head: str = canonicalize_bootstrap_address_or_die(address)
    except ConnectionError as error:
        if "multiple" in str(error):
            raise UserError(
                f"--cluster {address}: several Ray clusters run on this machine; use --cluster HOST:PORT, the address "
                "that ray start printed"
            ) from None
        raise UserError(f"--cluster {address}: no Ray cluster runs on this machine; {start}") from None
    except (ValueError, OSError):
        raise UserError(f"--cluster {address}: expected auto or HOST:PORT, such as 10.0.0.1:6379") from None
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise UserError(f"--cluster {address}: no Ray cluster answers at {head} ({error}); {start}") from None
    return head

"""A Ray cluster of three nodes on the loopback, whose workers and nodes can be killed."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import headwise

#: The smallest object store that Ray starts. Studies put nothing into it.
OBJECT_STORE_BYTES = 80 * 2**20

#: Seconds after which a node that has not started is started again.
START_SECONDS = 120


def why_no_cluster() -> str:
    """Return why no cluster can be started, or an empty text."""
    return "" if find_spec("ray") else "Ray is not installed: pip install 'headwise[cluster]'"


class LocalCluster:
    """Nodes that are processes of this machine. The command that uses them is on the first node, which is not killed.

    Args:
        cpus: the number of CPUs of each node, which is the number of runs at a time.
        gpus: the number of GPUs that each node claims to have.
    """

    def __init__(self, cpus: int = 1, gpus: int = 0) -> None:
        self.directory = tempfile.mkdtemp(prefix="hw-ray-")  # short: the paths of sockets are limited
        self.options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": OBJECT_STORE_BYTES}
        self.nodes: dict[str, Any] = {}
        self.start_head()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def start_head(self) -> None:
        """Start the first node, again if it ends itself."""
        from ray._common.utils import get_ray_address_file
        from ray.cluster_utils import Cluster

        Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)  # Ray expects it
        while not self.nodes:
            self.cluster = Cluster()
            if not self.try_to_add_node(include_dashboard=False, temp_dir=self.directory):
                self.cluster.shutdown()

    def add_node(self, **options: Any) -> None:
        """Start a node, again if it ends itself."""
        while not self.try_to_add_node(**options):
            pass

    def try_to_add_node(self, **options: Any) -> bool:
        """Start a node. Return False if it does not start: on a busy machine, a node may end itself at its start."""
        is_main_thread = threading.current_thread() is threading.main_thread()  # only it can handle signals
        self.cluster._shutdown_at_exit = is_main_thread
        try:
            with waiting_for_nodes():
                node = self.cluster.add_node(wait=False, **(self.options | options))
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            return False
        self.nodes[node.node_id] = node
        return True

    def is_killable(self, node_id: str) -> bool:
        """Return whether a node runs and is not the first one."""
        return node_id in list(self.nodes)[1:]

    def kill_node(self, node_id: str) -> None:
        """Kill all processes of a node at once."""
        node = self.nodes.pop(node_id)
        workers = find_workers(node)
        self.cluster.remove_node(node, allow_graceful=False)
        for worker in workers:  # they would notice the death of their node a moment later
            kill(worker)

    def workers(self, name: str) -> list[int]:
        """Return the processes that execute a task whose name contains a text."""
        return [worker for node in list(self.nodes.values()) for worker in find_workers(node, name)]

    def shutdown(self) -> None:
        self.cluster.shutdown()


def find_workers(node: Any, name: str = "") -> list[int]:
    """Return the worker processes of a node, by the title that Ray gives them."""
    raylets = [info.process.pid for info in node.all_processes["raylet"]]
    children = [int(child) for raylet in raylets for child in read(f"/proc/{raylet}/task/{raylet}/children").split()]
    return [child for child in children if name in read(f"/proc/{child}/cmdline")]


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def waiting_for_nodes() -> Iterator[None]:
    """Wait up to `START_SECONDS` for a node. Ray waits for 30 seconds only."""
    from ray._private import services

    get_node = services.get_node

    def get_started_node(*args: Any) -> Any:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                return get_node(*args)
            except RuntimeError:  # it has not started yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    services.get_node = get_started_node
    try:
        yield
    finally:
        services.get_node = get_node


@contextmanager
def start_cluster(num_nodes: int = 3, cpus: int = 1, gpus: int = 0) -> Iterator[LocalCluster]:
    """Start a cluster whose workers can import headwise and its tests."""
    paths = os.pathsep.join([str(Path(headwise.__file__).parents[1]), str(Path(__file__).parents[2])])
    variables = {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0"}
    variables["RAY_worker_niceness"] = "0"  # Ray's default of 15 starves workers on a busy machine
    # A killed node refuses connections at once. A node of a busy machine answers late, and must not count as dead.
    variables |= {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "600000"}
    variables["RAY_agent_register_timeout_ms"] = "600000"  # a node ends itself if its agent starts late
    old = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        cluster = LocalCluster(cpus, gpus)
        try:
            for _ in range(num_nodes - 1):
                cluster.add_node()
            yield cluster
        finally:
            cluster.shutdown()
    finally:
        for name, value in old.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

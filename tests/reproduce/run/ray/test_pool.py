"""Beyond one machine: a real Ray cluster of several nodes, here all on this machine.

Nodes and drivers are killed for real. Small scripts stand in for agents where what they learn does
not matter.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from reproduce import ROOT
from reproduce.plan.grid import Plan, Program
from reproduce.plan.make import commands, make_plan
from reproduce.plan.resources import Cluster, check_memory, demand_of
from reproduce.run import pool as pooling
from reproduce.run import processes
from reproduce.run.pool import launch
from reproduce.run.progress import Board
from reproduce.run.ray import pool as ray_pool
from reproduce.run.ray.pool import RayPool, connect
from suite.base import code
from suite.base.errors import UsageError
from suite.base.snapshot import read_snapshot
from tests.messages import check
from tests.reproduce.conftest import TASK, InThisProcess, Say, StandIn
from tests.reproduce.run.boards import FINISH, ends, ignore, record_of, wait_for
from tests.runs import repeatable

# of Ray's own sockets and processes
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

OFTEN = ("--checkpoint-minutes", "0.005")


class Nodes:
    """A cluster whose head, which the driver joins, runs nothing."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        quick = {"health_check_period_ms": 300, "health_check_failure_threshold": 3}
        quick |= {"enable_worker_prestart": False, "prestart_worker_first_driver": False}
        self._small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
        head = {"num_cpus": 0, "_system_config": quick, **self._small}
        head |= {"no_monitor": True, "include_log_monitor": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self._nodes: dict[str, Any] = {}

    def add(self, **resources: int) -> str:
        """Let a machine join; return Ray's name for it."""
        node = self._cluster.add_node(**resources, **self._small)
        self._cluster.wait_for_nodes()
        self._nodes[node.node_id] = node
        return node.node_id

    def kill(self, name: str) -> None:
        """End a machine without a word."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Head and a machine with two cores."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    os.environ["RAY_AUTH_MODE"] = "disabled"  # whatever token lies in this home directory
    # Ray's default is 15: then other tests starve the agents
    os.environ |= {"RAY_worker_niceness": "0"}
    nodes = Nodes()
    nodes.add(num_cpus=2)
    yield nodes
    nodes.stop()


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pools that are made: they know where each group runs."""
    made: list[Any] = []

    class Known(RayPool):
        def __init__(self, plan: Plan) -> None:
            super().__init__(plan)
            made.append(self)

    monkeypatch.setattr("reproduce.run.ray.pool.RayPool", Known)
    return made


def pendulum(runs_dir: Path, seeds: list[int], **options: Any) -> Plan:
    """Short runs of SAC with small networks."""
    changes = ["hidden_sizes=16,16", "batch_size=16", "learning_starts=200", "log_interval=100"]
    changes += ["evaluation_interval=800", "evaluation_episodes=1"]
    standard = {"tasks": [TASK], "env_steps": 2400, "device": "cpu", "settings": changes}
    return make_plan("sac", "classic", runs_dir=runs_dir, seeds=seeds, **(standard | options))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two runs of the local launcher, to compare with."""
    plan = pendulum(tmp_path_factory.mktemp("local"), [1, 2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "AgentProcess", InThisProcess)
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        assert launch(plan, ignore).count("finished") == 2
    return plan


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents make a checkpoint every 0.3 seconds; the harness looks at what arrives as often."""
    command = Program.command
    monkeypatch.setattr(Program, "command", lambda *given: (*command(*given), *OFTEN))
    monkeypatch.setattr(pooling, "POLL_SECONDS", 0.1)


@pytest.fixture
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that do not find the driver's files: their disks are their own, unless `shared`."""
    if getattr(request, "param", "apart") == "apart":
        monkeypatch.setattr(ray_pool, "_on_a_shared_disk", lambda path: f"/proc/nowhere{path}")


further = pytest.mark.further
on_disks = partial(pytest.mark.parametrize, "apart", indirect=True)


@pytest.mark.long
@pytest.mark.usefixtures("often", "apart")
@on_disks([pytest.param("shared", marks=further), "apart"])
def test_a_killed_node_costs_nothing_but_time(
    nodes: Nodes, pools: list[Any], local: Plan, tmp_path: Path
) -> None:
    """Its run goes on elsewhere from its last checkpoint, and ends as with the local launcher."""
    killed: list[int] = []
    seen: dict[int, set[int]] = {1: set(), 2: set()}

    def watch(board: Board) -> None:
        for row in board.rows:
            if row.state == "running":
                seen[row.run.seed].add(row.env_steps)
            there = row.run.directory / "checkpoint" / "checkpoint.json"
            if not killed and row.env_steps >= 400 and there.exists():
                killed.append(row.run.seed)
                (worker,) = [w for w in pools[0]._workers if w.group == (row.run,)]
                nodes.kill(worker.agent.node)

    nodes.add(num_cpus=1)
    with connect(nodes.address) as cluster:
        plan = pendulum(tmp_path / "ray", [1, 2], cluster=cluster)
        board = launch(plan, watch)
    assert board.count("finished") == 2
    assert board.notes == [
        f"{TASK} seed {killed[0]} is placed elsewhere: its node is lost (NodeDiedError)"
    ]
    assert repeatable(plan.directory / TASK) == repeatable(local.directory / TASK)
    resumptions = {seed: len(record_of(plan, seed)["resumed_at"]) for seed in (1, 2)}
    assert resumptions == {1: 0, 2: 0} | {killed[0]: 1}
    assert [run.status for run in plan.runs()] == ["finished", "finished"]  # by their manifests
    assert min(map(len, seen.values())) > 3  # progress came while they ran
    for key in ("commit", "dirty", "sources", "versions", "machine", "config"):
        assert record_of(plan, 1)[key] == record_of(local, 1)[key]
    names = {path.name for path in (plan.directory / TASK).rglob("*")}
    assert names == {path.name for path in (local.directory / TASK).rglob("*")}


@pytest.mark.long
@pytest.mark.usefixtures("apart")
@on_disks(["shared", pytest.param("apart", marks=further)])
def test_an_error_of_the_agent_is_its_own(nodes: Nodes, tmp_path: Path, stand_in: StandIn) -> None:
    """It is not tried again; its last words arrive; the others finish."""
    count = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"
    crash = count + "print(*range(100), sep='\\n', flush=True)\nraise ValueError('no more')"
    stand_in({1: FINISH, 2: crash, 3: FINISH})
    with connect(nodes.address) as cluster:
        plan = pendulum(tmp_path, [1, 2, 3], cluster=cluster)
        assert ends(launch(plan, ignore)) == {
            1: ("finished", ""),
            2: ("failed", "exit 1: ValueError: no more"),
            3: ("finished", ""),
        }
    assert (tmp_path / "starts").read_text() == "x"
    record = record_of(plan, 2)
    assert record["log_tail"][-1] == "ValueError: no more"
    assert len(record["log_tail"]) == pooling.LOG_LINES
    assert [run.status for run in plan.runs()] == ["finished", "failed", "finished"]


@pytest.mark.long
def test_other_code_than_the_grids_is_refused(
    nodes: Nodes, tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes compare what they were sent with what the grid was begun with."""
    stand_in({1: FINISH})
    ours = code.sources("sac")
    monkeypatch.setattr(Program, "code", lambda *_: ours | {"suite/envs/tasks.py": "0"})
    with connect(nodes.address) as cluster:
        plan = pendulum(tmp_path, [1], cluster=cluster)
        ((state, error),) = ends(launch(plan, ignore)).values()
    assert state == "failed"
    assert error.startswith("not started: suite/envs/tasks.py changed since this command was")


@pytest.mark.long
def test_groups_take_what_the_plan_says(nodes: Nodes, tmp_path: Path, stand_in: StandIn) -> None:
    """Two workers on one GPU have half of it each; both groups run at once, with a core each."""
    import ray

    both = f"""
pathlib.Path({str(tmp_path)!r}, seeds[0]).touch()
until = time.monotonic() + 30
while len(list(pathlib.Path({str(tmp_path)!r}).glob("[13]"))) < 2 and time.monotonic() < until:
    time.sleep(0.01)
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(1)
for folder in folders:
    end(folder, "finished")
"""
    stand_in({1: both.replace("seeds[0]", "'1' if 'Pend' in out else '3'")})
    name = nodes.add(num_cpus=2, num_gpus=1)
    used: list[dict[str, float]] = []

    def watch(board: Board) -> None:
        if board.count("running") == 4:
            total, free = ray.cluster_resources(), ray.available_resources()
            used.append({key: total[key] - free.get(key, 0.0) for key in ("CPU", "GPU")})

    with connect(nodes.address) as cluster:
        tasks = [TASK, "MountainCarContinuous-v0"]
        plan = pendulum(tmp_path, [1, 2], tasks=tasks, device="auto", workers=2, cluster=cluster)
        assert plan.device == "cuda"
        half = {"CPU": 1, "GPU": 0.5, "memory": 0}
        assert [(len(group), demand_of(plan, group)) for group in plan.groups()] == [(2, half)] * 2
        assert launch(plan, watch).count("finished") == 4
    assert {"CPU": 2.0, "GPU": 1.0} in used
    logs = [path.read_text() for path in plan.directory.glob("*/seeds-1-2.log")]
    assert logs == ["0\n", "0\n"]
    nodes.kill(name)


@pytest.mark.parametrize(
    ("nodes_there", "options", "says"),
    [
        ([{"CPU": 4.0}], {"device": "cuda"}, "1 CPUs, 1 GPUs, which no node"),
        ([{"GPU": 4.0}, {"CPU": 0.5}], {}, "1 CPUs, which no node"),
        ([], {}, "no node"),
        ([{"CPU": 4.0, "GPU": 1.0}], {"device": "cuda:1"}, "auto, cpu or cuda"),
    ],
)
def test_what_no_node_can_give_is_one_line(
    nodes_there: list[dict[str, float]], options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """Instead of a wait without end."""
    with pytest.raises(UsageError, match=says):
        pendulum(tmp_path, [1], cluster=Cluster(None, tuple(nodes_there)), **options)


@pytest.mark.parametrize(("gpus", "workers", "share"), [(3, 5, 0.5), (4, 4, 1.0), (1, 3, 1 / 3)])
def test_gpus_are_shared_as_planned(gpus: int, workers: int, share: float, tmp_path: Path) -> None:
    """A process is on one GPU: what is left of two makes none."""
    cluster = Cluster(None, ({"CPU": 8.0, "GPU": float(gpus)},))
    plan = pendulum(tmp_path, [1], device="cuda", workers=workers, cluster=cluster)
    (group,) = plan.groups()
    taken = demand_of(plan, group)
    assert taken["GPU"] == pytest.approx(share, abs=1e-4)
    assert cluster.num_places(taken) >= workers


def test_a_replay_that_no_node_holds_is_one_line(tmp_path: Path) -> None:
    """Memory counts where the agent says what it keeps; there Ray is asked for it."""
    asked: dict[str, Any] = {"tasks": ["Pong-v5"], "env_steps": 1_000_000, "num_seeds": 1}
    asked |= {"cluster": Cluster("auto", ({"CPU": 4.0, "memory": 4.0 * 2**30},)), "device": "cpu"}
    plan = make_plan("acer", "atari", runs_dir=tmp_path, **asked)
    (group,) = plan.groups()
    assert demand_of(plan, group)["memory"] > 0
    with pytest.raises(UsageError, match="GiB of memory, which no node"):
        check_memory(plan)
    smaller = ["replay_capacity=20000"]
    check_memory(make_plan("acer", "atari", runs_dir=tmp_path, settings=smaller, **asked))


def test_the_command_to_go_on_with_names_the_cluster(tmp_path: Path) -> None:
    """Workers and device are named only where they are not what the cluster has room for."""
    cluster = Cluster("head:6379", ({"CPU": 4.0}, {"CPU": 2.0}))
    plan = pendulum(tmp_path, [1], cluster=cluster)
    assert plan.workers == 6
    (words,) = commands(plan)
    assert " --launcher ray --ray-address head:6379" in words
    assert not re.search("--workers|--device", words)
    plan = pendulum(tmp_path, [1], cluster=cluster, workers=3)
    assert "--workers 3" in commands(plan)[0]


@pytest.mark.long
@pytest.mark.usefixtures("apart")
def test_ctrl_c_brings_a_checkpoint_home(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent writes one before it ends; the next start goes on from there."""
    monkeypatch.setattr(pooling, "STOP_SECONDS", 180.0)  # other tests may keep every core busy
    place = Path("runs", *pendulum(tmp_path, [1]).directory.parts[-2:], TASK, "seed-1")

    def interrupt(board: Board) -> None:
        for process in agents_alive():
            table = Path("/proc", process, "cwd", place, "updates.csv")
            if table.exists() and table.read_bytes().count(b"\n") > 3:
                assert not (board.rows[0].run.directory / "checkpoint").exists()
                raise KeyboardInterrupt

    with connect(nodes.address) as cluster:
        plan = pendulum(tmp_path, [1], cluster=cluster, env_steps=100_000)
        with pytest.raises(KeyboardInterrupt):
            launch(plan, interrupt)
    snapshot = read_snapshot(plan.directory / TASK / "seed-1" / "checkpoint")
    assert snapshot is not None
    assert snapshot.content["numbers"][0] >= 300


@pytest.mark.long
def test_ctrl_c_leaves_nothing_on_the_nodes(
    nodes: Nodes, tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a process that ignores the request to stop nor its folder; what waits stays."""
    monkeypatch.setattr(pooling, "STOP_SECONDS", 2.0)
    pid = tmp_path / "pid"
    sleep = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(pid)!r}).write_text(f"{{os.getpid()}} {{os.getcwd()}}")
time.sleep(60)
"""
    stand_in({1: sleep, 2: f"pathlib.Path({str(tmp_path / 'second')!r}).touch()\n" + FINISH})

    def interrupt(board: Board) -> None:
        if pid.exists() and pid.read_text():
            assert [row.state for row in board.rows] in (["running", "waiting"], ["waiting"] * 2)
            raise KeyboardInterrupt

    with connect(nodes.address) as cluster:
        plan = pendulum(tmp_path, [1, 2], cluster=cluster, workers=1)
        with pytest.raises(KeyboardInterrupt):
            launch(plan, interrupt)
        number, folder = pid.read_text().split()
        assert processes.start_time(int(number)) is None
        assert not Path(folder).exists()
    assert not (tmp_path / "second").exists()
    assert list(plan.directory.rglob("*.lease")) == []


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_pool import OFTEN, pendulum
from reproduce.run.pool import launch
from reproduce.plan.grid import Program
from reproduce.run.ray import pool
from reproduce.run.ray.pool import connect
pool._on_a_shared_disk = lambda path: f"/proc/nowhere{{path}}"
command = Program.command
Program.command = lambda *given: (*command(*given), *OFTEN)
with connect("auto") as cluster:
    launch(pendulum(Path({runs_dir!r}), [1], cluster=cluster), lambda board: None)
"""


def agents_alive() -> list[str]:
    """Processes of agents that work in a folder that a node made for them."""
    alive: list[str] = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"agents.sac" in words and "/encore-" in os.readlink(process / "cwd"):
                alive.append(process.name)
        except OSError:
            continue
    return alive


@pytest.mark.long
@pytest.mark.usefixtures("apart")
def test_what_a_killed_driver_received_goes_on(nodes: Nodes, local: Plan, tmp_path: Path) -> None:
    """Ray ends its tasks, the leash their agents; the next start finishes with the same bytes."""
    runs_dir = tmp_path / "ray"
    script = DRIVER.format(tests=str(Path(__file__).parent), runs_dir=str(runs_dir))
    environment = os.environ | {"RAY_ADDRESS": nodes.address, "PYTHONPATH": str(ROOT)}
    folder = pendulum(runs_dir, [1]).directory / TASK / "seed-1"
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as driver:
        wait_for((folder / "checkpoint" / "checkpoint.json").exists, "a checkpoint")
        assert agents_alive()
        driver.kill()
    wait_for(lambda: not agents_alive(), "the end of the agent")
    with connect(nodes.address) as cluster:
        plan = pendulum(runs_dir, [1], cluster=cluster)
        assert launch(plan, ignore).count("finished") == 1
    assert len(record_of(plan, 1)["resumed_at"]) == 1
    ours, theirs = (repeatable(each.directory / TASK) for each in (plan, local))
    assert ours == {name: content for name, content in theirs.items() if name in ours} != {}


@pytest.mark.parametrize(
    "words", [f"--launcher ray --ray-address {name}" for name in ("head", "a..b:6379", "FREE")]
)
def test_no_cluster_is_one_line(words: str, say: Say, tmp_path: Path) -> None:
    """At once, and with what to do, at an address where nobody listens, too."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{listener.getsockname()[1]}"
        asked = words.replace("FREE", free).split()
        status, _, err = say(["sac", "classic", *asked, "--runs-dir", str(tmp_path)])
    assert (status, err.count("\n"), list(tmp_path.iterdir())) == (2, 1, [])
    said = re.sub(r"\(.*\);", "(why);", err)  # in words of this Python
    check(said.replace(free, "FREE"), words)


def test_the_extra_is_named(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the command; `test_command_line.py` plans without Ray."""
    monkeypatch.setitem(sys.modules, "ray", None)  # which no import finds
    words = ["sac", "classic", "--runs-dir", str(tmp_path / "runs"), "--dry-run"]
    status, _, err = say([*words, "--launcher", "ray"])
    assert (status, err) == (2, "error: --launcher ray needs Ray: pip install 'encore-rl[ray]'\n")


LOCAL = """
import socket
from reproduce.run.ray.pool import connect
with connect(None):
    import ray
    host, port = ray.get_runtime_context().gcs_address.rsplit(":", 1)
    elsewhere = socket.gethostbyname(socket.gethostname())
    if elsewhere.startswith("127."):  # any address of this machine's network is as good
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect(("192.0.2.1", 1))
            elsewhere = asked.getsockname()[0]
    with socket.socket() as client:
        reached = client.connect_ex((elsewhere, int(port))) == 0
    print(host, [node["NodeManagerAddress"] for node in ray.nodes()], reached)
"""


@pytest.mark.long
def test_a_ray_of_this_machine_is_for_this_machine_alone(tmp_path: Path) -> None:
    """Whoever reaches its ports can run code: nobody on the network does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL],
        env={key: value for key, value in environment.items() if key != "RAY_AUTH_MODE"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "127.0.0.1 ['127.0.0.1'] False\n"


@pytest.mark.parametrize("where", ["home", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", ""])
def test_an_explicit_address_uses_the_token_that_there_is(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself looks for one only where no address is given, and is then refused."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if where == "home":
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret")
    elif where:
        monkeypatch.setenv(where, "secret")
    mode = ray_pool._environment("10.0.0.1:6379").get("RAY_AUTH_MODE")
    assert mode == ("token" if where else None)

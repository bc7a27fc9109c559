"""The facts of a run's machine: device, processor, versions."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from agents import a2c
from reproduce import __main__ as command_line
from suite.base import hardware
from suite.base.errors import UsageError
from suite.base.hardware import find_device, use_device
from tests.gpus import with_gpus
from tests.messages import refused


@pytest.mark.parametrize(
    ("name", "num_gpus", "expected", "chosen"),
    [
        ("cpu", 2, "cpu", []),
        ("auto", 0, "cpu", []),
        ("auto", 2, "cuda", []),
        ("cuda", 1, "cuda", []),
        ("cuda:1", 2, "cuda:1", [torch.device("cuda:1")]),
    ],
)
def test_a_device_is_found_by_name_and_is_the_only_one_in_use(
    name: str,
    num_gpus: int,
    expected: str,
    chosen: list[torch.device],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planner touches no GPU; a run makes the one that it names torch's current one."""
    asked: list[torch.device] = []
    with_gpus(monkeypatch, num_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    assert find_device(name) == torch.device(expected)
    assert asked == []
    assert use_device(name) == torch.device(expected)
    assert asked == chosen


@pytest.mark.parametrize(
    ("name", "num_gpus"), [("cuda", 0), ("cuda:2", 2), ("gpu", 1), ("cuda:-1", 1)]
)
def test_a_device_that_is_not_there_is_a_usage_error(
    name: str, num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run asked for on a GPU must not quietly take days on a CPU, nor end in a traceback."""
    with_gpus(monkeypatch, num_gpus)
    with refused():
        find_device(name)


@pytest.mark.parametrize("tf32", [True, False])
def test_products_and_convolutions_are_in_tf32_if_asked_for(
    tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both or neither: torch's own default has them differ. A process's next run asks anew."""
    with_gpus(monkeypatch, 1)
    kinds: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    for kind in kinds:
        kind.allow_tf32 = not tf32
    use_device("cuda", tf32=tf32)
    found = [kind.allow_tf32 for kind in kinds]
    use_device("cpu")  # float32 again, for other tests
    assert found == [tf32, tf32]


def test_tf32_without_a_gpu_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    """By an agent's own command and by a grid's."""
    with pytest.raises(UsageError, match="tf32 needs a GPU, and this run is on cpu: leave it out"):
        a2c.main(["--tf32=true", "--device=cpu", f"--out={tmp_path / 'out'}"])
    words = ["a2c", "classic", "--set", "tf32=true", "--device=cpu", f"--runs-dir={tmp_path}"]
    with pytest.raises(UsageError, match="tf32 needs a GPU"):
        command_line.main([*words, "--dry-run"])
    assert not [*tmp_path.iterdir()]


def test_a_containers_share_of_the_processors_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a grid would start a process for each core of a large machine."""
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(hardware, "CPU_QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for text, cores in (("max 100000", 64), ("250000 100000", 2), ("50000 100000", 1)):
        quota.write_text(text)
        assert hardware.num_cores() == cores
    quota.unlink()
    assert hardware.num_cores() == 64


@pytest.mark.gpu
@pytest.mark.parametrize("tf32", [True, False])
def test_a_gpu_rounds_factors_as_asked(tf32: bool) -> None:
    """In TF32 1 + 2^-12 is 1, in a product as in a convolution; in float32 it is not."""
    device = use_device("cuda", tf32=tf32)
    number = 1 + 2**-12
    ones = torch.ones(256, 256, 1, 1, device=device).contiguous(memory_format=torch.channels_last)
    maps = torch.full((64, 256, 16, 16), number, device=device)
    products = [
        (number * torch.eye(256, device=device)) @ torch.eye(256, device=device),
        torch.nn.functional.conv2d(maps.contiguous(memory_format=torch.channels_last), ones) / 256,
    ]
    use_device("cpu")
    assert [product.max().item() for product in products] == [1.0 if tf32 else number] * 2


def test_two_generations_of_one_name_are_two_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hypervisor calls both "AMD EPYC"; their speeds and roundings differ."""
    listed = "processor : {0}\nmodel name : AMD EPYC\ncpu family : {1}\n\n"
    names = set()
    for family in ("23", "25"):
        monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
        cores = (listed.format(core, family) for core in range(2))
        (tmp_path / "cpuinfo").write_text("".join(cores))
        facts = hardware.processor.__wrapped__()
        assert (facts["cpu"], facts["cpu family"], facts["model"]) == ("AMD EPYC", family, None)
        names.add(hardware.processor_name(facts))
    assert len(names) == 2


@pytest.mark.parametrize(
    ("device", "name"), [("auto", "GPU 0"), ("cuda", "GPU 0"), ("cuda:1", "GPU 1"), ("cpu", None)]
)
def test_the_gpu_is_the_one_in_use(
    device: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's first GPU may be another model, or not be visible to CUDA at all."""
    with_gpus(monkeypatch, 2)
    named = {torch.device("cuda"): "GPU 0", torch.device("cuda:1"): "GPU 1"}
    monkeypatch.setattr(torch.cuda, "get_device_name", named.__getitem__)
    monkeypatch.setattr(hardware, "_first_gpu", lambda: {"gpu": None, "gpu_driver": "1"})
    assert hardware.machine.__wrapped__(device)["gpu"] == name


PROCESS = """
import os, resource, torch
from suite.base.hardware import use_threads, worker_thread
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def convolve():
    torch.nn.functional.conv2d(torch.ones(1, 4, 84, 84), torch.ones(16, 4, 8, 8))
def number():
    return len(os.listdir("/proc/self/task"))
given_back = min(faults() for _ in range(10))
use_threads(1)
kept = min(faults() for _ in range(10))
convolve()
with worker_thread() as thread:
    thread.submit(int).result()
    before = number()
    thread.submit(convolve).result()
    print(given_back, kept, number() - before)
"""


def test_memory_of_an_update_serves_the_next_and_a_new_thread_takes_no_more_cores() -> None:
    """Giving 32 MiB back would cost 8,192 page faults each time; oneDNN would take all cores."""
    eager = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "OMP_NUM_THREADS": "8"}
    command = [sys.executable, "-c", PROCESS]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=eager)
    given_back, kept, more_threads = map(int, result.stdout.split())
    assert given_back > 1_000
    assert kept < 100
    assert more_threads == 0

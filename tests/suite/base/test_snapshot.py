"""State on disk: every kind comes back in place, and a folder never holds half of anything."""

import hashlib
import json
import os
import pickle
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from suite.base.errors import UsageError
from suite.base.snapshot import BROKEN, Snapshot, pack, read_snapshot, unpack, write_snapshot
from tests.bombs import Bomb
from tests.runs import Killed


@dataclass(frozen=True)
class Settings:
    """What a run does not change."""

    rate: float


@dataclass
class Learner:
    """Objects inside an object."""

    network: nn.Module
    optimiser: torch.optim.Optimizer
    flat: Tensor


class Moments:
    """Numbers that are replaced, and settings."""

    def __init__(self) -> None:
        self.settings, self.count, self.mean = Settings(0.1), 0.0, np.zeros(())


def state(seed: int) -> dict[str, Any]:
    """Return one of everything, as it is after `seed` steps."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimiser = torch.optim.Adam(network.parameters(), fused=True)
    moments, generator = Moments(), np.random.default_rng(seed)
    for _ in range(seed):
        network(torch.randn(4, 2)).sum().backward()
        optimiser.step()
        moments.count += 1
        moments.mean = moments.mean + 0.5  # from here on a number, no array
    generator.integers(0, 9, size=seed)  # leaves half a draw behind
    return {
        "learner": Learner(network, optimiser, torch.arange(3.0) + seed),
        "moments": moments,
        "generators": [generator, np.random.default_rng(seed + 1)],
        "sums": np.array([seed, np.nan]),
        "means": {f"loss_{i}": torch.tensor([float(i)]) for i in range(seed)},
        "versions": deque([(seed, [torch.full((2,), float(seed))])] * seed, maxlen=2),
        "kernel": torch.arange(16.0)
        .reshape(1, 4, 2, 2)
        .contiguous(memory_format=torch.channels_last)
        * seed,
        "numbers": [seed, 0.1 + 0.2 * seed, float("inf"), -seed, None, "text", seed > 1],
    }


def text(value: Any) -> str:
    """Return all that `pack` sees of a value."""
    tensors: dict[str, Tensor] = {}
    tree = pack(value, tensors, "state")
    return repr(tree) + repr({name: (t.dtype, t.tolist()) for name, t in tensors.items()})


@pytest.mark.parametrize("steps", [0, 2])
def test_every_kind_of_state_comes_back_where_it_was(steps: int, tmp_path: Path) -> None:
    """Whoever holds a tensor, a generator or a list sees the old state in it, to the last bit."""
    then, now = state(3), state(steps)
    tensors: dict[str, Tensor] = {}
    content = {"state": pack(then, tensors, "state")}
    write_snapshot(tmp_path / "checkpoint", Snapshot(content, tensors))
    snapshot = read_snapshot(tmp_path / "checkpoint")
    assert snapshot is not None
    weight, generator, sums = now["learner"].network[0].weight, now["generators"][0], now["sums"]
    means, versions = now["means"], now["versions"]
    restored = unpack(snapshot.content["state"], snapshot.tensors, now)
    assert restored is now
    assert text(now) == text(then)
    assert weight is now["learner"].network[0].weight
    assert torch.equal(weight, then["learner"].network[0].weight)
    assert generator.integers(0, 9, size=5).tolist() == (
        then["generators"][0].integers(0, 9, size=5).tolist()
    )
    assert now["sums"] is sums
    assert now["means"] is means
    assert now["versions"] is versions
    assert versions.maxlen == 2
    assert isinstance(versions[0], tuple)
    assert isinstance(now["moments"].mean, np.float64)
    assert now["moments"].settings == Settings(0.1)
    for learner in (then["learner"], now["learner"]):  # the optimiser goes on as it would have
        learner.optimiser.zero_grad()  # gradients are no state
        learner.network(torch.ones(1, 2)).sum().backward()
        learner.optimiser.step()
    assert text(now["learner"]) == text(then["learner"])


@pytest.mark.parametrize("value", [lambda: 0, Moments, object(), {"inside": [print]}])
def test_what_has_no_state_is_refused(value: Any) -> None:
    """A silent gap in a checkpoint would show as other bytes, days later."""
    with pytest.raises(TypeError, match="state"):
        pack(value, {}, "state")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (torch.zeros(1), torch.zeros(3)),  # `copy_` would broadcast it
        (torch.zeros(3, dtype=torch.float64), torch.zeros(3)),
        (nn.Linear(2, 1), nn.Linear(1, 1)),
        (nn.Linear(1, 1), nn.Linear(1, 1, bias=False)),
        (Moments(), Learner(nn.Linear(1, 1), cast(Any, None), torch.zeros(1))),
        ("text", 1.0),
        ([1], np.random.default_rng(0)),
    ],
)
def test_state_of_another_make_is_refused(old: Any, new: Any) -> None:
    """It raises something that the journal turns into one line."""
    tensors: dict[str, Tensor] = {}
    tree = pack(old, tensors, "state")
    with pytest.raises(BROKEN):
        unpack(tree, tensors, new)


def test_a_write_that_dies_at_any_point_leaves_one_whole_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every call that changes the disk: the old one until the new one is whole."""
    old, new = ({"tensor": torch.full((50,), float(i))} for i in (1, 2))
    left = 0

    def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            for step in (None, call):
                left -= 1
                if left == 0:
                    raise Killed
                result = None if step is None else step(*args, **kwargs)
            return result

        return run

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
        monkeypatch.setattr(owner, name, mortal(getattr(owner, name)))
    seen = []
    for limit in range(1, 100):
        folder = tmp_path / str(limit)
        write_snapshot(folder, Snapshot({"number": 1}, old))
        left = limit
        try:
            write_snapshot(folder, Snapshot({"number": 2}, new))
        except Killed:
            pass
        else:
            break
        left = 0
        snapshot = read_snapshot(folder)
        assert snapshot is not None
        number = snapshot.content["number"]
        assert torch.equal(snapshot.tensors["tensor"], (old, new)[number - 1]["tensor"])
        seen.append(number)
        write_snapshot(folder, Snapshot({"number": 3}, old))  # what is left does not disturb
        assert len(list(folder.glob("*.safetensors"))) == 1
    assert set(seen) == {1, 2}
    assert seen == sorted(seen)
    assert len(seen) >= 15


def test_every_damage_is_found(tmp_path: Path) -> None:
    """A byte flipped or a tail lost, anywhere in either file: one line, never wrong numbers."""
    content = {"number": 0.5, "clock": {"seconds": 1e-3}}
    write_snapshot(tmp_path, Snapshot(content, {"tensor": torch.arange(9.0)}))
    generator = random.Random(0)
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        for _ in range(200):
            at = generator.randrange(len(whole))
            flipped = bytes([whole[at] ^ 1 << generator.randrange(8)])
            tail = b"" if generator.random() < 0.3 else whole[at + 1 :]
            path.write_bytes(whole[:at] + flipped * (tail != b"") + tail)
            with pytest.raises(UsageError, match=r"^unreadable checkpoint in"):
                read_snapshot(tmp_path)
        path.write_bytes(whole)
    assert read_snapshot(tmp_path) is not None
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(UsageError, match="No such file"):
        read_snapshot(tmp_path)


def test_all_that_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a description above other JSON files' 8 MiB; more tensors than are read are refused."""
    numbers = [0.125] * 2**21
    write_snapshot(tmp_path, Snapshot({"numbers": numbers}, {}))
    snapshot = read_snapshot(tmp_path)
    assert snapshot is not None
    assert snapshot.content["numbers"] == numbers
    monkeypatch.setattr("suite.base.snapshot.LARGEST_TENSORS", 1_000)
    with pytest.raises(UsageError, match=r"^a checkpoint has .* GiB, .*: train fewer seeds"):
        write_snapshot(tmp_path, Snapshot({"numbers": []}, {"tensor": torch.zeros(300)}))
    snapshot = read_snapshot(tmp_path)
    assert snapshot is not None
    assert snapshot.content["numbers"] == numbers


def test_nothing_in_a_snapshot_is_run(tmp_path: Path) -> None:
    """A pickle in the place of tensors is bytes, not code, though the sums are right."""
    write_snapshot(tmp_path, Snapshot({}, {"tensor": torch.zeros(1)}))
    bait = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(bait))
    content = {"tensors": hashlib.sha256(bomb).hexdigest()}
    (tmp_path / f"tensors-{content['tensors'][:16]}.safetensors").write_bytes(bomb)
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (tmp_path / "checkpoint.json").write_text(json.dumps({"sha256": seal, "content": content}))
    with pytest.raises(UsageError, match=r"^unreadable checkpoint in (?!.*changed)"):
        read_snapshot(tmp_path)
    assert not bait.exists()
    assert read_snapshot(tmp_path / "nowhere") is None

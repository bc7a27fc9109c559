"""Whether the checkpoint of a killed run fits the run that starts now."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.base import hardware
from suite.base.code import of_code
from suite.base.errors import UnreadableError, UsageError
from suite.base.files import CHECKPOINT, extent
from suite.record.manifest import TABLES
from suite.record.reading import seeds_of
from suite.record.seed_folder import (
    ENDS,
    SeedFolder,
    is_finished,
    read_entries,
    refuse_finished,
)
from suite.settings.older import WITHOUT_EFFECT

ACTIONS = "actions.bin"
"""File of all actions of an unfinished run, in its checkpoint folder."""
UNFINISHED = ("running", "diverged")
"""Statuses of the seeds of an unfinished group."""
NAMED = {"agent", "suite", "source", "task"}
"""What a command names: with another of them it is another command, whatever code made the run."""
CIRCUMSTANCES = {"processor", "versions", "seeds", "device"}
"""Differences that a repeated command may have: the run then starts anew. If the code differs, so
may settings."""


def find(folder: Path, identity: Mapping[str, Any], seeds: Sequence[SeedFolder]) -> tuple[Any, str]:
    """Return the snapshot that these seeds can resume from exactly; else None, and why not.

    There is no reason where there is no checkpoint. A `UsageError` refuses to begin a run in place
    of a finished one, of an unfinished one of another command, or of one that cannot be read now.
    """
    snapshot, misfit, is_other = _fit(folder, identity, seeds)
    if snapshot is not None and not misfit:
        return snapshot, ""
    for seed in seeds:
        is_long = is_finished(seed.folder, identity["env_steps"])
        refuse_finished(
            seed.folder,
            why="" if is_long else misfit or "it has no checkpoint of these seeds in this order",
        )
    if is_other:
        raise UsageError(
            f"{folder.parent} holds an unfinished run of another command ({misfit}): choose "
            "another --out, in a grid --fresh, or delete it"
        )
    for seed in seeds:
        _refuse_others_progress(seed)
    return None, misfit


def _refuse_others_progress(seed: SeedFolder) -> None:
    """Refuse to begin a seed that a killed command trained together with others than this one.

    That command can go on if it left a checkpoint, none of its seeds has finished and not all have
    diverged.
    """
    from suite.base.snapshot import DESCRIPTION  # imports torch

    before, now = read_entries(seed.folder), seed.entries
    others = seeds_of(before)
    if not others or others == seeds_of(now):
        return
    device = hardware.chosen_device(str(before["config"].get("device")))
    folders = [seed.folder.with_name(f"seed-{other}") for other in others]
    group = [read_entries(folder) for folder in folders]
    statuses = {each.get("status") for each in group}
    can_go_on = (
        (folders[0] / CHECKPOINT / DESCRIPTION).exists()
        and of_code(before.get("sources")) == of_code(now["sources"])
        and before.get("versions") == now["versions"]
        and _hardware(before, device) == _hardware(now, device)
        and all(seeds_of(each) == others for each in group)
        and "finished" not in statuses
        and statuses != {"diverged"}
    )
    if can_go_on:
        raise UsageError(
            f"{seed.folder} holds an unfinished run of --seeds {' '.join(map(str, others))}: go on "
            "with them, choose another --out, in a grid --fresh, or delete it"
        )


def _hardware(entries: Mapping[str, Any], device: object) -> list[Any]:
    """Return what a record says of the hardware that decides the bytes of a run on a device."""
    machine = entries.get("machine")
    known = machine if isinstance(machine, dict) else {}
    names = ("processor",) if device == "cpu" else ("processor", "gpu", "gpu_driver")
    return [known.get(name) for name in names]


def identity_of(run: Mapping[str, Any], seeds: Sequence[SeedFolder]) -> dict[str, Any]:
    """Return everything that two commands must share to give the same bytes, as JSON values.

    `env_steps` may be others when a run goes on: nothing that it does before its end depends on it.
    Settings `WITHOUT_EFFECT` may be others.
    """
    first, config = seeds[0].entries, run.get("config", {})
    counting = comparable(config, "env_steps")
    identity = {
        **{key: value for key, value in run.items() if key != "command"},
        "env_steps": config.get("env_steps", 0),
        "config": counting,
        "seeds": [seed.entries["seed"] for seed in seeds],
        "processor": _hardware(first, counting.get("device")),
        "sources": of_code(first["sources"]),
        "versions": first["versions"],
    }
    return json.loads(json.dumps(identity))


def comparable(config: Mapping[str, Any], but: str) -> dict[str, Any]:
    """Return the settings by which two runs are compared, with the device that `auto` chooses.

    The setting called `but` and those `WITHOUT_EFFECT` are left out.
    """
    kept = {name: each for name, each in config.items() if name not in (but, *WITHOUT_EFFECT)}
    if "device" in kept:
        kept["device"] = hardware.chosen_device(kept["device"])
    return kept


def _fit(
    folder: Path, identity: Mapping[str, Any], seeds: Sequence[SeedFolder]
) -> tuple[Any, str, bool]:
    """Return the checkpoint, if any, why it does not fit, and whether another command made it."""
    from suite.base.snapshot import BROKEN, read_snapshot  # imports torch

    try:
        snapshot = read_snapshot(folder)
        if snapshot is None or not any(seed.is_running for seed in seeds):
            return None, "", False
        past, changes = _other_run(snapshot.content, identity)
        misfit = past or _in_words(changes, identity) or _damage(snapshot.content, folder, seeds)
    except UsageError as error:
        return None, str(error), False
    except (FileNotFoundError, *BROKEN) as error:
        return None, f"unreadable checkpoint: {error}", False
    except OSError as error:  # it may be whole, and beginning anew would delete it
        raise UnreadableError(f"cannot read {error.filename or folder}: {error.strerror}") from None
    code_changed = "sources" in changes or CIRCUMSTANCES.issuperset(changes)
    return snapshot, misfit, bool(past) or not code_changed or not NAMED.isdisjoint(changes)


def _in_words(changes: Sequence[str], identity: Mapping[str, Any]) -> str:
    """Say what a checkpoint has another of than this command; empty if nothing."""
    if [*changes] == ["keep_best"]:
        without, fix = ("out", "omit") if "keep_best" in identity else ("", "add")
        return f"it was begun with{without} --keep-best: {fix} it"
    return f"its checkpoint differs in {', '.join(changes)}" if changes else ""


def _other_run(content: Mapping[str, Any], identity: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return whether a checkpoint lies past the end, in words, and what else it has another of."""
    theirs, ours = dict(content["identity"]), dict(identity)
    end, config = ours.pop("env_steps"), ours.pop("config")
    stride = config.get("num_envs", 1) * config.get("unroll_length", 1)
    is_past = theirs.pop("env_steps", 0) > end < content["numbers"][0] + stride
    ours |= config
    theirs |= theirs.pop("config")
    past = f"its checkpoint is at {content['numbers'][0]} env_steps, not before the end"
    changes = [key for key in ours | theirs if theirs.get(key) != ours.get(key)]
    return past if is_past else "", changes


def _damage(content: Mapping[str, Any], folder: Path, seeds: Sequence[SeedFolder]) -> str:
    """Return which file of a run is not what its checkpoint says; empty if all are."""
    ends, files_of = content["ends"], content["files"]
    json.dumps(ends, allow_nan=False)
    if any(end.keys() != set(ENDS) or end["status"] not in UNFINISHED for end in ends):
        raise ValueError("a seed has an impossible status")
    for rows in (ends, files_of):
        if not isinstance(rows, list) or len(rows) != len(seeds):
            raise ValueError("not one entry for each seed")
    extents = {folder / ACTIONS: content["actions"]}
    for seed, files in zip(seeds, files_of, strict=True):
        if seed.status != "finished":
            extents |= {seed.folder / name: files[name] for name in TABLES if name in files}
    changed = [path for path, known in extents.items() if extent(path, known[0]) != known]
    return f"{changed[0]} was changed" if changed else ""

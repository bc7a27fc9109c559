"""`tensorboard RUNS LOGDIR`: mirror recorded runs into TensorBoard (extra `tracking`).

The recorded files stay the truth; the mirror can be deleted and made again at any time.
"""

from pathlib import Path

from reproduce.gather.collect import read_table
from suite.settings import UsageError

TABLES = ("episodes", "evaluations", "updates", "timing")


def mirror(runs: Path, logdir: Path) -> int:
    """Write every recorded column of every run below `runs` as scalars over environment steps.

    Args:
        runs: a folder with runs somewhere below it.
        logdir: where the event files go, one folder per run, named as below `runs`.

    Returns:
        the number of mirrored runs.

    Raises:
        UsageError: without tensorboard, or if there is no run below `runs`.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("tensorboard is missing: pip install 'encore-rl[tracking]'") from None
    records = sorted(runs.rglob("run.json"))
    if not records:
        raise UsageError(f"{runs} holds no runs (<task>/seed-<k>/run.json)")
    for record in records:
        name = record.parent.relative_to(runs)
        with SummaryWriter(str(logdir / name)) as writer:
            for table in TABLES:
                rows = read_table(record.parent / f"{table}.csv")
                for row in rows.to_dict("records"):
                    env_steps = int(row.pop("env_steps"))
                    for column, value in row.items():
                        writer.add_scalar(f"{table}/{column}", value, env_steps)
    return len(records)

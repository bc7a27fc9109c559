"""A sweep is the product of the values, one grid each, compared with the first honestly."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reproduce.commands import sweep
from reproduce.commands.flags import make_console
from reproduce.pipeline import gather
from reproduce.plan.grid import Plan, Program
from reproduce.plan.request import Request
from tests.reproduce.conftest import TASK, Say, pendulum, record_run

WORDS = ["sac", "classic", "--tasks", TASK, "--env-steps", "1000", "--seeds", "1-3"]
WORDS += ["--device", "cpu", "--set", "gamma=0.9,0.99", "tau=0.01"]


def grid(runs_dir: Path, *settings: str, tasks: tuple[str, ...] = (TASK,)) -> Plan:
    """A variant in a folder that its settings name."""
    return pendulum(runs_dir / sweep.folder_name(settings), tasks=tasks, settings=settings)


def record(plan: Plan, *scores: float, task: str = TASK) -> None:
    """Record a finished run per score."""
    for seed, score in enumerate(scores, start=1):
        record_run(plan, task, seed, {1000: score})


@pytest.mark.parametrize(
    ("agent", "settings", "variants"),
    [
        ("sac", [], [()]),
        ("sac", ["gamma=0.9", "hidden_sizes=16,8"], [("gamma=0.9", "hidden_sizes=16,8")]),
        (
            "sac",
            ["gamma=0.9,0.99", "tau=0.1,0.2"],
            [(f"gamma={gamma}", f"tau={tau}") for gamma in (0.9, 0.99) for tau in (0.1, 0.2)],
        ),
        ("sac", ["hidden-sizes=8,8/16"], [("hidden-sizes=8,8",), ("hidden-sizes=16",)]),
        ("sac", ["learn_alpha=true,false"], [("learn_alpha=true",), ("learn_alpha=false",)]),
        ("sac_alf", ["reward_weights=0.5,0.5"], [("reward_weights=0.5,0.5",)]),
    ],
)
def test_a_sweep_is_a_product(
    agent: str, settings: list[str], variants: list[tuple[str, ...]]
) -> None:
    """Commas separate values, slashes those that are lists of their own; the first comes first."""
    asked = Request(agent=agent, suite="classic", settings=settings)
    assert sweep.combinations(asked) == variants


def test_a_folder_is_named_by_all_settings() -> None:
    """Whatever they hold, within what a file system takes; two variants never share one."""
    assert sweep.folder_name(["gamma=0.9", "hidden_sizes=8,8"]) == "gamma=0.9,hidden_sizes=8-8"
    assert "/" not in sweep.folder_name(["gamma=../x"])
    long = [f"gamma={'9' * 300}{i}" for i in range(2)]
    assert len({sweep.folder_name([setting]) for setting in long}) == 2
    assert max(len(sweep.folder_name([setting])) for setting in long) < 255


def test_variants_are_compared_with_the_first_and_their_number_is_counted(tmp_path: Path) -> None:
    """Welch's intervals and p-values; those are adjusted over tasks and variants (Holm)."""
    tasks = (TASK, "MountainCarContinuous-v0")
    plans = [grid(tmp_path, f"gamma={gamma}", tasks=tasks) for gamma in (0.9, 0.95, 0.99)]
    scores = np.array([[[1.0, 2.0, 4.0], [9.0, 9.5, 9.0], [2.0, 2.0, 3.0]]] * 2)
    scores[1] *= -1.0
    for task, of_task in zip(tasks, scores, strict=True):
        for plan, of_plan in zip(plans, of_task, strict=True):
            record(plan, *of_plan, task=task)
    variants = sweep.variants_of(plans)
    gathered = {name: gather(plan)["scores"] for name, plan in variants.items()}
    table = sweep.compare(variants, gathered)
    assert list(table["variant"]) == ["gamma=0.9", "gamma=0.95", "gamma=0.99"] * 2
    np.testing.assert_allclose(table["score_mean"], scores.mean(axis=2).ravel())
    against = [stats.ttest_ind(of[i], of[0], equal_var=False) for of in scores for i in (1, 2)]
    compared = table[table["p"].notna()]
    np.testing.assert_allclose(compared["p"], [test.pvalue for test in against])
    intervals = [test.confidence_interval(0.95) for test in against]
    np.testing.assert_allclose(compared[["ci_low", "ci_high"]], intervals)
    least = min(test.pvalue for test in against)
    assert table["p_holm"].min() == pytest.approx(4 * least)
    assert len(compared) == 4


@pytest.mark.usefixtures("undrawn", "svg_alone")
def test_a_diverged_run_counts_as_it_does_in_its_grid(tmp_path: Path) -> None:
    """As a random policy: a setting that diverges is not flattered by the seeds that did not."""
    plans = [grid(tmp_path, f"gamma={gamma}") for gamma in (0.9, 0.99)]
    record(plans[0], -200.0, -200.0, -200.0)
    record(plans[1], -200.0, -200.0)
    record_run(plans[1], TASK, 3, {1000: -200.0}, status="diverged")
    path, variants, console = tmp_path / "sweep.csv", sweep.variants_of(plans), make_console()
    with console.capture() as planned:
        console.print(sweep.plan_table(variants))
    assert "gamma=0.99 3 0 " in " ".join(planned.get().split()), "none is left to run"
    with console.capture() as said:
        assert sweep.run(variants, path, console, "again") == 2
    assert f"gamma=0.99: {TASK} seed 3 diverged" in said.get()
    table = pd.read_csv(path)
    expected = [pd.read_csv(plan.directory / "scores.csv")["score"].mean() for plan in plans]
    assert table["num_seeds"].tolist() == [3, 3]
    np.testing.assert_allclose(table["score_mean"], expected)
    assert expected[1] < expected[0] == -200.0


@pytest.mark.usefixtures("undrawn", "svg_alone")
def test_a_sweep_stops_where_its_code_changes(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table would compare the change, too."""
    monkeypatch.chdir(tmp_path)
    for gamma in (0.9, 0.99):
        record(grid(Path("runs"), f"gamma={gamma}", "tau=0.01"), 1.0, 1.0, 1.0)

    def train(plan: Plan, console: object) -> tuple[Plan, dict[tuple[str, int], str]]:
        monkeypatch.setattr(Program, "code", lambda *_: {"agents/sac.py": "edited"})
        return plan, {}

    monkeypatch.setattr("reproduce.commands.sweep.train", train)
    status, _, err = say(WORDS)
    assert (status, "agents/sac.py" in err) == (2, True)
    assert err.endswith("changed since this command was started\n")


@pytest.mark.usefixtures("undrawn", "svg_alone")
def test_from_command_to_table(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run writes nothing; finished variants are compared, mirrored and shown."""
    monkeypatch.chdir(tmp_path)
    status, out, _ = say([*WORDS, "--dry-run"])
    assert "2 variants of 1 task" in out
    assert [out.count(f"gamma={gamma} ") for gamma in (0.9, 0.99)] == [1, 1]
    assert (status, list(tmp_path.iterdir())) == (0, [])
    plans = [grid(Path("runs"), f"gamma={gamma}", "tau=0.01") for gamma in (0.9, 0.99)]
    record(plans[0], 1.1, 1.2, 1.3)
    record(plans[1], 9.1, 9.2, 9.3)
    mirrors, opened = list[tuple[Path, str]](), list[str]()

    @contextlib.contextmanager
    def mirrored(plan: Plan, kind: str, say: object) -> Iterator[None]:
        mirrors.append((plan.directory, kind))
        yield

    monkeypatch.setattr("reproduce.commands.track.mirrored", mirrored)
    monkeypatch.setattr("reproduce.commands.track.check_kind", lambda kind: None)
    monkeypatch.setattr("webbrowser.open", opened.append)
    status, out, _ = say([*WORDS, "--track", "tensorboard", "--open"])
    assert status == 0
    assert "gamma=0.99 9.20 ± 0.10 3 8.00 [7.77, 8.23] 6.51e-08" in " ".join(out.split())
    assert "adjusted for the number of comparisons, 1 (Holm)" in out
    for plan in plans:
        assert f"{plan.directory}/index.html" in out
        assert (plan.directory / "index.html").exists()
        report = (plan.directory / "report.json").read_text()
        assert not re.search("--track|--open", report), "readers need neither"
    name = f"sweep-sac-classic-{plans[0].source}-gamma=0.9,gamma=0.99"
    assert (tmp_path / "runs" / f"{name}.csv").exists()
    assert f"learning curves: runs/{name}.png, .svg, .pdf" in " ".join(out.split())
    assert mirrors == [(plan.directory, "tensorboard") for plan in plans]
    assert opened == [(tmp_path / "runs" / f"{name}.svg").as_uri()]

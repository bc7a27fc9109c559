"""Reference data: exact numbers, windows, versions that must not mix, and the files' integrity."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce import references
from reproduce.references import ROOT, reference_curves, reference_score, sources

JUDGES = ("jaxrl", "nnabla_rl", "pytorch_sac", "simbav2_baselines", "tianshou_v3")


def table(name: str) -> pd.DataFrame:
    """A file of the reference data as it is on disk."""
    return pd.read_csv(ROOT / name)


@pytest.fixture
def two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Other reference data: a source that judges in one folder, and context in another."""
    (tmp_path / "sources.csv").write_text(
        "agent,source,judges,rule,evaluation_interval_steps,num_runs,repository,commit,licence,"
        "path,settings\n"
        "new,someone,yes,sampled,10,2,a/b,c,MIT,p,s\n"
        "old,elsewhere,no,training,,2,a/b,c,MIT,p,s\n",
        encoding="utf-8",
    )
    (tmp_path / "comparable.csv").write_text(
        "agent,source,env_id,task,max_env_steps,why\n"
        "new,someone,E,T-v0,,same\nold,elsewhere,E,T-v0,,same\nold,someone,F,T-v0,,same\n",
        encoding="utf-8",
    )
    runs = [(1, 90, 7), (1, 100, 1), (2, 90, 7), (2, 100, 3), (1, 190, 5), (1, 200, 5), (2, 200, 5)]
    for folder, key in (("one", "old,elsewhere,E"), ("two", "new,someone,E")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "curves_by_seed.csv").write_text(
            "agent,source,env_id,seed,env_steps,mean_return\n"
            + "".join(f"{key},{seed},{env_steps},{value}\n" for seed, env_steps, value in runs),
            encoding="utf-8",
        )
        (tmp_path / folder / "scores.csv").write_text(
            "agent,source,env_id,env_steps,score_mean,score_std,num_runs\n"
            f"{key},100,9,9,2\n{key},200,8,4,2\n",
            encoding="utf-8",
        )
    monkeypatch.setattr(references, "ROOT", tmp_path)
    references._table.cache_clear()
    references._sources.cache_clear()
    yield
    references._table.cache_clear()
    references._sources.cache_clear()


@pytest.mark.parametrize(
    ("source", "task", "env_steps", "mean", "std", "num_runs"),
    [
        ("nnabla_rl", "Reacher-v4", 30_000, -5.777, 0.790, 3),
        ("nnabla_rl", "InvertedPendulum-v4", 30_000, 1000.0, 0.0, 3),
        ("nnabla_rl", "HalfCheetah-v4", 30_000, 850.507, 484.726, 3),
        ("jaxrl", "HalfCheetah-v4", 100_000, 5725.155, 463.403, 10),
    ],
)
def test_known_scores(source, task, env_steps, mean, std, num_runs) -> None:
    """Scores that were computed independently from the sources' own files."""
    score = reference_score("sac", source, task, env_steps, "deterministic")
    assert score is not None
    assert (score.mean, score.std) == pytest.approx((mean, std), abs=0.006)
    assert (score.num_runs, score.how, score.env_steps) == (num_runs, "single runs", env_steps)


def test_score_is_the_mean_over_runs_of_the_mean_over_the_window() -> None:
    """A slow loop over the file: at 200,000 the window holds four evaluations, not 180,000."""
    runs = table("mujoco/curves_by_seed.csv").query("source == 'jaxrl' and env_id == 'Hopper-v2'")
    by_seed: dict[int, list[float]] = {}
    for row in runs.to_dict("records"):
        if row["env_steps"] in (185_000, 190_000, 195_000, 200_000):
            by_seed.setdefault(row["seed"], []).append(row["mean_return"])
    means = [sum(returns) / 4 for returns in by_seed.values()]
    overall = sum(means) / 10
    variance = sum((mean - overall) ** 2 for mean in means) / 9
    score = reference_score("sac", "jaxrl", "Hopper-v4", 200_000, "deterministic")
    assert score is not None
    assert (score.mean, score.std) == pytest.approx((overall, variance**0.5))


def test_single_runs_and_table_agree_wherever_both_exist() -> None:
    """Where no evaluation was left out, the score computed here is the tabulated one."""
    compared = 0
    by_env = {
        (row["source"], row["env_id"]): row["task"]
        for row in table("comparable.csv").to_dict("records")
    }
    for row in table("mujoco/scores.csv").to_dict("records"):
        task = by_env[row["source"], row["env_id"]]
        score = reference_score("sac", row["source"], task, row["env_steps"], "deterministic")
        if score is not None and score.how == "single runs":
            compared += 1
            assert score.mean == pytest.approx(row["score_mean"], abs=0.011)
            assert score.std == pytest.approx(row["score_std"], abs=0.011, nan_ok=True)
            assert score.num_runs == row["num_runs"]
    assert compared > 150


def test_a_thinned_window_falls_back_to_the_table() -> None:
    """HalfCheetah lacks 95,000: at 100,000 the table counts, not the point that is left."""
    score = reference_score("sac", "nnabla_rl", "HalfCheetah-v4", 100_000, "deterministic")
    assert score is not None
    assert (score.how, score.mean, score.std) == ("tabulated", 5119.2, 256.52)


def test_between_tabulated_steps_mean_and_spread_are_interpolated() -> None:
    """A quarter of the way from 100,000 to 200,000."""
    rows = table("mujoco/scores.csv").query("source == 'nnabla_rl' and env_id == 'Walker2d-v2'")
    start, end = (rows.query("env_steps == @step").iloc[0] for step in (100_000, 200_000))
    score = reference_score("sac", "nnabla_rl", "Walker2d-v4", 125_000, "deterministic")
    assert score is not None
    assert score.how == "interpolated"
    assert score.mean == pytest.approx(0.75 * start["score_mean"] + 0.25 * end["score_mean"])
    assert score.std == pytest.approx(0.75 * start["score_std"] + 0.25 * end["score_std"])


@pytest.mark.parametrize("env_steps", [1, 4_999, 40_000, 99_999, 3_000_001, 10_000_000])
def test_nothing_is_extrapolated(env_steps) -> None:
    """Below the first tabulated step and beyond the last there is no reference."""
    assert reference_score("sac", "nnabla_rl", "HalfCheetah-v4", env_steps, "deterministic") is None


def test_another_rule_has_no_reference() -> None:
    """Deterministic evaluations are never compared with sampled ones or with training."""
    for rule in ("sampled", "training", "unstated"):
        assert reference_score("sac", "jaxrl", "Hopper-v4", 100_000, rule) is None


@pytest.mark.parametrize(
    ("source", "task"),
    [
        ("nnabla_rl", "Ant-v4"),
        ("nnabla_rl", "Humanoid-v4"),
        ("jaxrl", "Ant-v4"),
        ("jaxrl", "Humanoid-v4"),
        ("tianshou_v3", "Ant-v4"),
        ("tianshou_v3", "Humanoid-v4"),
        ("nnabla_rl", "Hopper-v5"),
        ("nnabla_rl", "Reacher-v5"),
        ("nnabla_rl", "HalfCheetah-v3"),
        ("simbav2_baselines", "Ant-v5"),
    ],
)
def test_versions_that_differ_have_no_reference(source, task) -> None:
    """v4 of Ant and Humanoid differ from v2 and v3, and v5 of most tasks from all of them."""
    assert reference_score("sac", source, task, 300_000, "deterministic") is None


def test_versions_that_agree_share_a_reference() -> None:
    """HalfCheetah-v5 behaves as v4, and v4 runs of Ant and Humanoid judge v4."""
    for task in ("HalfCheetah-v4", "HalfCheetah-v5"):
        score = reference_score("sac", "nnabla_rl", task, 1_000_000, "deterministic")
        assert score is not None
        assert (score.env_id, score.mean) == ("HalfCheetah-v2", 10898.0)
    for task in ("Ant-v4", "Humanoid-v4"):
        score = reference_score("sac", "simbav2_baselines", task, 100_000, "deterministic")
        assert score is not None
        assert score.env_id == task


def test_a_source_is_used_no_further_than_it_compares() -> None:
    """InvertedPendulum of nnabla_rl collapses after 330,000 steps: it ends at 300,000."""
    task = "InvertedPendulum-v4"
    assert reference_score("sac", "nnabla_rl", task, 300_000, "deterministic") is not None
    assert reference_score("sac", "nnabla_rl", task, 305_000, "deterministic") is None
    curves = reference_curves("sac", task, "nnabla_rl")
    last_steps = dict(zip(curves["source"], curves["env_steps"], strict=True))
    assert last_steps == {"nnabla_rl": 300_000, "tianshou_v3": 1_260_000}


def test_one_run_has_no_spread() -> None:
    """Single runs of the DeepMind Control Suite, computed and tabulated, have a NaN spread."""
    for env_steps, how in ((60_000, "single runs"), (2_000_000, "tabulated")):
        score = reference_score(
            "sac", "pytorch_sac", "CartpoleSwingup-v1", env_steps, "deterministic"
        )
        assert score is not None
        assert (score.num_runs, score.how) == (1, how)
        assert np.isnan(score.std)


def test_unknown_names_and_steps() -> None:
    """A misspelt source is an error that lists the sources; an agent without any has none."""
    with pytest.raises(ValueError, match="no source 'jaxlr'; it has dopamine, jaxrl"):
        reference_score("sac", "jaxlr", "Hopper-v4", 100_000, "deterministic")
    with pytest.raises(ValueError, match="env_steps must be positive, not 0"):
        reference_score("sac", "jaxrl", "Hopper-v4", 0, "deterministic")
    assert sources("no-such-agent") == ()
    assert reference_score("no-such-agent", "paper", "Hopper-v4", 1, "deterministic") is None


def test_curves_are_sorted_and_one_source_judges() -> None:
    """Every comparable source is drawn in order of steps; all but the judge are context."""
    curves = reference_curves("sac", "Hopper-v4", "jaxrl")
    assert list(curves.columns) == [
        *("source", "env_id", "env_steps", "return_mean", "return_low", "return_high"),
        *("num_runs", "rule", "role"),
    ]
    env_ids = curves.groupby("source")["env_id"].unique().map(list).to_dict()
    assert env_ids["jaxrl"] == ["Hopper-v2"]
    assert env_ids["simbav2_baselines"] == ["Hopper-v4"]
    assert not curves.duplicated(["source", "env_steps"]).any()
    roles = curves.groupby("source")["role"].unique().map(list).to_dict()
    assert roles.pop("jaxrl") == ["judge"]
    assert set(roles) >= {"nnabla_rl", "dopamine", "mushroom_rl", "simbav2_baselines"}
    assert all(role == ["context"] for role in roles.values())
    assert curves.groupby("source")["env_steps"].is_monotonic_increasing.all()
    rules = curves.groupby("source")["rule"].first()
    assert rules[["jaxrl", "dopamine", "mushroom_rl"]].tolist() == [
        *("deterministic", "training", "sampled")
    ]


def test_a_task_without_curves_has_an_empty_frame_with_all_columns() -> None:
    """Callers may draw it without asking first."""
    empty = reference_curves("sac", "Hopper-v5", "jaxrl")
    assert empty.empty
    assert list(empty.columns) == list(reference_curves("sac", "Hopper-v4", "jaxrl").columns)


def test_sources_that_judge_come_first() -> None:
    """The five judges, then context; a protocol that was inferred is said to be."""
    entries = sources("sac")
    assert tuple(entry.source for entry in entries if entry.judges) == JUDGES
    assert [entry.judges for entry in entries] == sorted(
        (entry.judges for entry in entries), reverse=True
    )
    inferred = next(entry for entry in entries if entry.source == "simbav2_baselines")
    assert "inferred" in inferred.settings
    assert inferred.evaluation_interval_steps == 16_666


def test_every_source_states_where_it_comes_from() -> None:
    """Repository, full commit, licence and path, and a rule that the product knows."""
    for entry in sources("sac"):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.repository)
        assert re.fullmatch(r"[0-9a-f]{40}", entry.commit)
        assert entry.licence in {"MIT", "Apache-2.0"}
        assert entry.path
        assert entry.settings
        assert entry.rule in {"deterministic", "sampled", "training"} or not entry.judges
        assert f"`{entry.source}`" in (ROOT / "SOURCES.md").read_text(encoding="utf-8")


def test_files_hold_exactly_what_compares() -> None:
    """Each comparable environment has curves, a judge's also runs and scores, and no other has."""
    keys = ["agent", "source", "env_id"]
    wanted = set(table("comparable.csv")[keys].itertuples(index=False, name=None))
    judged = {key for key in wanted if key[1] in JUDGES}
    files = {"curves": wanted, "curves_by_seed": judged, "scores": judged}
    for name, expected in files.items():
        rows = table(f"mujoco/{name}.csv")
        assert set(rows[keys].itertuples(index=False, name=None)) == expected
        seed = ["seed"] if "seed" in rows else []
        assert not rows.duplicated([*keys, *seed, "env_steps"]).any()
    assert {key[1] for key in wanted} == {entry.source for entry in sources("sac")}
    assert not table("comparable.csv").duplicated(["agent", "source", "task"]).any()
    assert sum(path.stat().st_size for path in ROOT.rglob("*.*")) < 10_000_000


def test_mean_curves_are_the_means_of_the_single_runs() -> None:
    """Mean, spread and number of runs of each drawn point follow from the single runs."""
    keys = ["source", "env_id", "env_steps"]
    runs = table("mujoco/curves_by_seed.csv").groupby(keys)["mean_return"]
    merged = table("mujoco/curves.csv").query("source in @JUDGES").set_index(keys)
    merged = merged.join(runs.agg(["mean", "std", "count"]), how="outer", validate="1:1")
    np.testing.assert_allclose(merged["return_mean"], merged["mean"], atol=0.011)
    half_band = (merged["return_high"] - merged["return_low"]) / 2.0
    np.testing.assert_allclose(half_band, merged["std"], atol=0.021)
    np.testing.assert_array_equal(merged["num_runs"], merged["count"])


def test_tasks_are_ids_of_the_simulator() -> None:
    """A misspelt task would silently have no reference."""
    envpool = pytest.importorskip("envpool")
    assert set(table("comparable.csv")["task"]) <= set(envpool.list_all_envs())


@pytest.mark.usefixtures("two_folders")
def test_another_folder_and_agent_need_no_change_of_code() -> None:
    """All folders are read as one table, and agents keep their own sources."""
    exact = reference_score("new", "someone", "T-v0", 100, "sampled")
    assert exact is not None
    assert (exact.mean, exact.std, exact.how) == (2.0, pytest.approx(2**0.5), "single runs")
    assert [entry.source for entry in sources("new")] == ["someone"]
    assert [entry.evaluation_interval_steps for entry in sources("old")] == [None]


@pytest.mark.usefixtures("two_folders")
def test_a_window_that_one_run_misses_is_not_averaged() -> None:
    """The second run lacks step 190, so at 200 the tabulated score counts."""
    incomplete = reference_score("new", "someone", "T-v0", 200, "sampled")
    assert incomplete is not None
    assert (incomplete.mean, incomplete.std, incomplete.how) == (8.0, 4.0, "tabulated")


@pytest.mark.usefixtures("two_folders")
def test_a_context_source_never_judges() -> None:
    """It has a score at this step and by this rule, but only curves to draw."""
    assert reference_score("old", "elsewhere", "T-v0", 100, "training") is None

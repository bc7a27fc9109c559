"""Reference data: exact numbers, windows, versions that must not mix, and the files' integrity."""

import functools
import lzma
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce import ROOT
from reproduce.commands import list as source_pages
from reproduce.commands.judge import judge_curves
from reproduce.commands.list import describe_source
from reproduce.gather import references
from reproduce.gather.others import read_curves
from reproduce.gather.references import COLUMNS, reference_curves, reference_score, sources
from reproduce.plan.unlearned import read_zeros
from reproduce.report.frames import possible_returns
from suite.envs.tasks import ATARI_PROTOCOLS, TASKS
from suite.settings.presets import REFERENCES, read_source
from tests.messages import refused
from tests.reproduce.conftest import ReadFrom, scored

AGENTS = ("sac", "a2c", "ppo", "impala", "acer", "acer_continuous", "sac_value", "sac_discrete")
JUDGES = (
    *("jaxrl", "mushroom_rl", "nnabla_rl", "pytorch_sac", "sb3_control", "simbav2_baselines"),
    *("tianshou_control", "tianshou_v3"),
)
KEYS = ["agent", "source", "env_id"]


@functools.cache
def table(pattern: str) -> pd.DataFrame:
    """Files of the reference data as they are on disk, each with its source."""
    paths = [*REFERENCES.glob(pattern)]
    tables = [pd.read_csv(path).assign(source=path.parent.name) for path in paths]
    return pd.concat(tables, ignore_index=True)


def names(rows: pd.DataFrame) -> set[tuple[str, ...]]:
    """Agent, source and environment of rows."""
    return set(rows[KEYS].itertuples(index=False, name=None))


COMPARABLE = pd.read_csv(REFERENCES / "comparable.csv")
SAID = """
title = "Another"
repository = "a/b"
commit = "0123456789abcdef0123456789abcdef01234567"
licence = "MIT"

[data]
path = "p"
notes = "n"
"""


@pytest.fixture
def no_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_sources_from: ReadFrom
) -> Path:
    """An empty folder, which is read in place of ours."""
    monkeypatch.setattr(source_pages, "REFERENCES", tmp_path)
    read_sources_from(tmp_path)
    return tmp_path


@pytest.fixture
def other_sources(no_sources: Path) -> Path:
    """Other reference data: sources that judge, and one that is context."""
    for agent, source, judges, rule, more in (
        ("new", "someone", "true", "sampled", 'evaluation_interval_steps = 10\nstated_as = "best"'),
        ("old", "elsewhere", "false", "training", 'stated_as = "last"'),
        ("new", "drawn", "true", "training", ""),
        ("new", "evaluated", "true", "sampled", "evaluation_interval_steps = 10"),
        ("new", "reported", "true", "training", ""),
    ):
        (no_sources / source).mkdir()
        text = f'{SAID}judges = {judges}\nrule = "{rule}"\n{more}\n'
        (no_sources / source / f"{agent}.toml").write_text(text, encoding="utf-8")
    comparable = ["new,someone,E,T-v0,,,same", "old,elsewhere,E,T-v0,,,same"]
    comparable += ["old,someone,F,T-v0,,,same", "new,drawn,E,T-v0,sticky,,same"]
    comparable += [f"new,{source},E,T-v0,sticky,,same" for source in ("evaluated", "reported")]

    def of(agent: str, rows: str) -> list[str]:
        return [f"{agent},E,{row}" for row in rows.split()]

    runs, scores = "1,90,7 1,100,1 2,90,7 2,100,3 1,110,5 1,120,5 2,110,9", "100,9,9,2 120,8,4,2"
    reports = "1,70,3 1,85,4 1,95,6 1,105,0 2,40,1 2,98,9 2,101,0"
    tables = {
        "comparable": comparable,
        "elsewhere/curves_by_seed": of("old", runs),
        "elsewhere/scores": of("old", scores),
        "someone/curves_by_seed": of("new", runs),
        "someone/scores": of("new", scores),
        "reported/curves_by_seed": of("new", reports),
        "drawn/curves": of("new", "100,10,8,12,2 110,14,13,15,2 300,30,,,2"),
        "evaluated/curves": of("new", "100,10,8,12,2 200,20,14,26,2"),
    }
    for name, rows in tables.items():
        header = ",".join(COLUMNS[name.rpartition("/")[2]])
        (no_sources / f"{name}.csv").write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return no_sources


@pytest.mark.parametrize(
    ("source", "task", "env_steps", "mean", "std", "num_runs"),
    [
        ("nnabla_rl", "InvertedPendulum-v4", 30_000, 1000.0, 0.0, 3),
        ("nnabla_rl", "HalfCheetah-v4", 100_000, 5119.2, 256.52, 3),
        ("nnabla_rl", "HalfCheetah-v5", 1_000_000, 10898.0, 528.7, 3),  # which behaves as v4
        ("jaxrl", "HalfCheetah-v4", 100_000, 5725.155, 463.403, 10),
        ("tianshou_v3", "HalfCheetah-v4", 100_000, 6159.59, 451.4, 10),
        ("simbav2_baselines", "Ant-v4", 5_000_000, 4579.56, 799.89, 10),
        ("pytorch_sac", "AcrobotSwingup-v1", 5_000_000, 262.51, 7.68, 2),
        ("pytorch_sac", "CheetahRun-v1", 10_000_000, 918.16, 2.48, 3),  # evaluated up to 9,980,000
        ("pytorch_sac", "CartpoleSwingup-v1", 2_000_000, 881.62, np.nan, 1),  # its last step
    ],
)
def test_scores_are_the_sources_own(source, task, env_steps, mean, std, num_runs) -> None:
    """Scores computed independently from the sources' own files; one run has no spread."""
    score = scored("sac", source, task, env_steps, "deterministic")
    assert (score.mean, score.std) == pytest.approx((mean, std), abs=0.006, nan_ok=True)
    assert (score.num_runs, score.how, score.env_steps) == (num_runs, "single runs", env_steps)


@pytest.mark.parametrize(
    ("source", "task", "steps", "rule"),
    [
        ("nnabla_rl", "HalfCheetah-v4", (1, 4_999, 5_999, 3_005_001), "deterministic"),
        ("nnabla_rl", "InvertedPendulum-v4", (305_000,), "deterministic"),  # its runs collapse
        *(("jaxrl", "Hopper-v4", (100_000,), rule) for rule in ("sampled", "training", "unstated")),
        *(
            (source, f"{task}-v4", (300_000,), "deterministic")
            for source in ("nnabla_rl", "jaxrl", "tianshou_v3")
            for task in ("Ant", "Humanoid")  # v4 differs from v2 and v3
        ),
        ("nnabla_rl", "Hopper-v5", (300_000,), "deterministic"),
        ("nnabla_rl", "HalfCheetah-v3", (300_000,), "deterministic"),
        ("simbav2_baselines", "Ant-v5", (300_000,), "deterministic"),
        (None, "Hopper-v4", (100_000,), "deterministic"),
    ],
)
def test_what_does_not_compare_has_no_reference(source, task, steps, rule) -> None:
    """Nothing is extrapolated, no rule stands for another, and versions that differ are apart."""
    assert not any(reference_score("sac", source, task, t, rule) for t in steps)


def test_curves_are_sorted_and_one_source_judges() -> None:
    """Every comparable source is drawn as far as it compares; all but the judge are context."""
    curves = reference_curves("sac", "Hopper-v4", "jaxrl")
    assert tuple(curves.columns) == references.CURVE_COLUMNS
    by_source = curves.groupby("source")
    env_ids, roles = (by_source[name].unique().map(list) for name in ("env_id", "role"))
    assert env_ids[["jaxrl", "simbav2_baselines"]].tolist() == [["Hopper-v2"], ["Hopper-v4"]]
    assert {*roles.index} >= {"nnabla_rl", "dopamine", "mushroom_rl", "simbav2_baselines"}
    assert roles.pop("jaxrl") == ["judge"]
    assert all(role == ["context"] for role in roles)
    assert (by_source["env_steps"].diff().dropna() > 0).all()
    rules = by_source["rule"].first()[["dopamine", "mushroom_rl"]]
    assert rules.tolist() == ["training", "sampled"]
    ends = reference_curves("sac", "InvertedPendulum-v4", None).groupby("source")["env_steps"].max()
    assert ends[["nnabla_rl", "tianshou_v3"]].tolist() == [300_000, 1_260_000]
    empty = reference_curves("sac", "Hopper-v5", "jaxrl")
    assert (len(empty), tuple(empty.columns)) == (0, references.CURVE_COLUMNS)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_source_states_where_it_comes_from(agent) -> None:
    """Repository, commit, licence and path, and a rule that the product knows."""
    assert sources(agent)
    for name, entry in sources(agent).items():
        said = read_source(REFERENCES / name / f"{agent}.toml")
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", said["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", entry.commit or said["commit"])
        assert said["licence"] in {"MIT", "Apache-2.0"}
        assert entry.path
        assert entry.notes.strip()
        assert entry.rule in {"deterministic", "sampled", "training"} or not entry.judges


def test_files_hold_exactly_what_compares() -> None:
    """Each comparable environment, and no other, has a curve or a score; its task is ours."""
    comparable = COMPARABLE
    entries = {(agent, name): data for agent in AGENTS for name, data in sources(agent).items()}
    judges = {key for key, entry in entries.items() if entry.judges}
    curves, scores = names(table("*/curves.csv*")), names(table("*/scores.csv"))
    runs = names(table("*/curves_by_seed.csv.xz"))
    assert curves | scores == names(comparable)
    assert runs <= curves
    assert {key[:2] for key in scores} == {key for key in judges if entries[key].stated_as}
    assert {source for _, source in judges - {key[:2] for key in runs}} == {
        *("cleanba", "openai_baselines", "ppo_paper", "cleanrl", "slm_lab_v5_fig")
    }
    assert runs == {key for key in curves if key[:2] in {run[:2] for run in runs}}
    for pattern in ("*/curves.csv*", "*/scores.csv"):
        assert not table(pattern).duplicated([*KEYS, "env_steps"]).any()
    by_seed = table("*/curves_by_seed.csv.xz")
    twice = by_seed[by_seed.duplicated([*KEYS, "seed", "env_steps"])]
    # Several environments of one run may end an episode at the same step.
    assert {*twice["source"]} <= {"rl_zoo", "sb3_control"}
    assert {key[:2] for key in names(comparable)} == {*entries}
    for row in comparable.fillna({"protocol": ""}).to_dict("records"):
        atari = TASKS[row["task"]].family == "atari"
        assert row["protocol"] in (ATARI_PROTOCOLS if atari else ("",))
    assert not comparable.duplicated(["agent", "source", "task"]).any()
    assert sum(path.stat().st_size for path in REFERENCES.rglob("*.*")) < 20_000_000


def test_mean_curves_are_the_means_of_the_single_runs() -> None:
    """Mean, spread and number of runs of each drawn point follow from the single runs."""
    keys = [*KEYS, "env_steps"]
    runs = table("*/curves_by_seed.csv.xz").groupby(keys)["mean_return"]
    curves = table("*/curves.csv*").query("source in @JUDGES")
    curves = curves.query("source != 'sb3_control' or agent == 'sac'")  # others: training episodes
    merged = curves.set_index(keys).join(
        runs.agg(["mean", "std", "count"]), how="left", validate="1:1"
    )
    assert set(merged.index.get_level_values("agent")) == {"sac", "a2c", "ppo", "sac_value"}
    np.testing.assert_allclose(merged["return_mean"], merged["mean"], atol=0.011, rtol=1e-4)
    half_band = (merged["return_high"] - merged["return_low"]) / 2.0
    has_spread = merged["num_runs"] > 1
    rounding = (0.021 + 1e-4 * merged["return_mean"].abs())[has_spread]
    np.testing.assert_array_less((half_band - merged["std"]).abs()[has_spread], rounding)
    assert merged["std"].isna().equals(~has_spread)
    np.testing.assert_array_equal(merged["num_runs"], merged["count"])


def test_no_return_lies_outside_those_that_a_task_has() -> None:
    """Bands are cut there: of references' means and runs, of ours, and of who learned nothing."""
    means = table("*/curves.csv*").rename(columns={"return_mean": "mean_return"})
    theirs = pd.concat([means, table("*/curves_by_seed.csv.xz")]).merge(COMPARABLE, on=KEYS)
    ours = pd.concat(map(pd.read_csv, (ROOT / "results/published").glob("*/*/curves.csv")))
    rows = [(name, score) for (name, _), known in read_zeros().items() for score in known[:3]]
    rows += [*theirs[["task", "mean_return"]].itertuples(index=False, name=None)]
    rows += [*ours[["task", "mean_return"]].itertuples(index=False, name=None)]
    returns = pd.DataFrame(rows, columns=["task", "value"]).groupby("task")["value"]
    for name, (least, most) in returns.agg(["min", "max"]).T.items():
        lowest, highest = possible_returns(str(name))
        assert lowest <= least <= most <= highest, name


@pytest.mark.usefixtures("other_sources")
def test_another_source_and_agent_need_no_change_of_code() -> None:
    """All folders are read as one table, agents keep their sources, and context never judges."""
    exact, stated = (scored("new", "someone", "T-v0", t, "sampled") for t in (100, 120))
    assert (exact.std, str(exact)) == (pytest.approx(2**0.5), "single runs")
    assert (stated.std, str(stated)) == (4.0, "stated by the source: best")
    assert reference_score("old", "elsewhere", "T-v0", 100, "training") is None
    assert [*sources("new")] == ["drawn", "evaluated", "reported", "someone"]
    assert sources("old")["elsewhere"].evaluation_interval_steps is None


REPORTED = {70: None, 100: 7.5, 103: 5.25, 104: 5.25, 105: None}
DRAWN = {99: None, 100: 10.0, 109: 10.0, 110: 12.0, 125: None, 300: 30.0, 301: None}


@pytest.mark.usefixtures("other_sources")
@pytest.mark.parametrize(
    ("source", "rule", "protocol", "how", "means"),
    [
        # the second run ends at 110: at 119 it has what was due, at 120 the source's word counts
        ("someone", "sampled", "", "single runs", {100: 2.0, 119: 7.0, 121: None}),
        ("someone", "sampled", "", "stated", {120: 8.0}),
        # the second run reports at 98 and 101, so after 104 it has ended; at 70 it says nothing
        ("reported", "training", "sticky", "single runs", REPORTED),
        # without runs the points of a curve count, and between points there is nothing
        ("drawn", "training", "sticky", "drawn curve", DRAWN),
        # but no curve stands for evaluations
        ("evaluated", "sampled", "sticky", "", {100: None}),
    ],
)
def test_a_window_that_one_run_misses_is_not_averaged(source, rule, protocol, how, means) -> None:
    """Nothing is made up where a run has ended, or not begun."""
    for env_steps, mean in means.items():
        score = reference_score("new", source, "T-v0", env_steps, rule, protocol)
        assert (score and score.mean) == mean
        assert score is None or (score.num_runs, score.how) == (2, how)
        assert how != "drawn curve" or score is None or np.isnan(score.std)


BY_SEED = "someone/curves_by_seed.csv"


def test_a_table_that_was_unpacked_beside_itself_counts_once(other_sources: Path) -> None:
    """Every evaluation would be there twice."""
    content = (other_sources / BY_SEED).read_bytes()
    (other_sources / f"{BY_SEED}.xz").write_bytes(lzma.compress(content))
    score = reference_score("new", "someone", "T-v0", 100, "sampled")
    assert (score and score.mean) == 2.0
    assert references.single_runs()["source"].tolist().count("someone") == 7


MISTAKES = {
    "no columns": ("comparable.csv", ""),
    # every row has a cell too many, which pandas takes for an index
    "a cell too many": ("comparable.csv", "H\nnew,someone,E,T-v0,,,same, alike\n"),
    "no protocol": ("comparable.csv", "H\nnew,someone,E,T-v0,stickey,,same\n"),
    "another column": (BY_SEED, "agent,env,seed,env_steps,mean_return\nnew,E,1,90,1\n"),
    "half a step": (BY_SEED, "H\nnew,E,1,90,1\nnew,E,1,100.5,3\n"),
    "an empty cell": (BY_SEED, "H\nnew,E,1,90,\n"),
    "too many steps": (BY_SEED, "H\nnew,E,1,99999999999999999999,1\n"),
    "nobody's runs": (BY_SEED, "H\nnwe,E,1,90,1\n"),
    "one evaluation fewer": (BY_SEED, "H\nnew,E,1,90,1\nnew,E,1,110,1\n"),
    "a later beginning": (BY_SEED, "H\nnew,E,1,90,1\nnew,E,2,100,1\n"),
    "nobody's score": ("someone/scores.csv", "H\nnwe,E,100,9,9,2\n"),
    "a score by no rule": ("evaluated/scores.csv", "H\nnew,E,100,1,1,2\n"),
    "one task twice": ("comparable.csv", "H\nnew,someone,E,T,,,same\nnew,someone,F,T,,,alike\n"),
    "two names": ("sources.csv", "H\njaxrl,JAXRL,\njaxrl,jax,\n"),
}
"""Tables by what is wrong with them; H is a whole header."""


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_table_is_one_line(other_sources: Path, case: str) -> None:
    """The file and the mistake are named: never nothing, nor a traceback of pandas."""
    name, text = MISTAKES[case]
    path = other_sources / name
    path.write_text(text.replace("H", ",".join(COLUMNS[path.name.partition(".")[0]]), 1))
    with refused(case):
        reference_score("new", "someone", "T-v0", 150, "sampled")
        references.name_of("jaxrl")


@pytest.mark.usefixtures("other_sources")
@pytest.mark.parametrize(
    ("source", "facts"),
    [
        ("reported", ("T-v0", "sticky", "E", 70, 101, 2)),  # single runs, and nothing else
        ("someone", ("T-v0", "", "E", 90, 120, 2)),
        ("drawn", ("T-v0", "sticky", "E", 100, 300, 2)),
    ],
)
def test_single_runs_cover_a_task_as_a_curve_does(source: str, facts: tuple[object, ...]) -> None:
    """What can judge is never said to be nothing; single runs count where all of them are."""
    (row,) = references.coverage("new", source).itertuples(index=False, name=None)
    assert row == facts


def test_the_pages_example_is_read_listed_drawn_and_judges(no_sources: Path) -> None:
    """Its runs end at -250, -200 and -150; their curve is their mean; they reproduce themselves."""
    page = (REFERENCES / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"^`(\S+)`\n\n```\w+\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert len(files) == 5
    for name, text in files:
        (no_sources / name).parent.mkdir(exist_ok=True)
        (no_sources / name).write_text(text, encoding="utf-8")
    for name, columns in COLUMNS.items():
        assert f"| `{name}.csv` | `{','.join(columns)}` |" in page
    score = scored("sac", "somebody", "Pendulum-v1", 2000, "deterministic")
    assert (score.mean, score.std, score.num_runs) == (-200.0, pytest.approx(50.0), 3)
    assert score.how == "single runs"
    assert references.credits_of("sac", ["somebody"])["somebody"]["name"] == "Somebody's SAC"
    text = describe_source("somebody")
    assert "# Pendulum-v1: 1,000 to 2,000 steps, 3 runs (Pendulum-v1)" in text.splitlines()
    runs = pd.read_csv(no_sources / "somebody" / "curves_by_seed.csv")
    means = runs.groupby("env_steps")["mean_return"].mean()
    curve = reference_curves("sac", "Pendulum-v1", "somebody")
    assert curve["return_mean"].tolist() == means.tolist()
    ours = no_sources / "ours.csv"
    runs.rename(columns={"env_id": "task"}).to_csv(ours, index=False)
    verdicts = judge_curves("sac", read_curves([ours]), "somebody")["verdicts"]
    assert verdicts["verdict"].tolist() == ["reproduced"]


def test_protocols_never_mix() -> None:
    """Neither score nor curve of one protocol appears under another, nor without one."""
    arguments = ("impala", "cleanba", "Pong-v5", 50_000_000, "training")
    assert reference_score(*arguments, "sticky") is not None
    assert reference_score(*arguments, "noframeskip") is None
    assert reference_score(*arguments) is None
    for protocol, known in (("sticky", {"slm_lab_v5_fig"}), ("", set())):
        drawn = reference_curves("a2c", "Qbert-v5", "rllib_2018", protocol)
        assert set(drawn["source"]) == known


def test_cleanba_has_a_spread_at_its_end_and_a_figure_before() -> None:
    """Alien: the table's deviation with n - 1, by its rule; nothing between figure and table."""
    early, *none, final = (
        reference_score("impala", "cleanba", "Alien-v5", env_steps, "training", "sticky")
        for env_steps in (10_000_000, 1_000_000, 49_900_000, 50_000_001, 50_000_000)
    )
    assert final is not None
    assert (final.mean, final.num_runs) == (5592.46, 3)
    assert final.std == pytest.approx(2052.31 * (3 / 2) ** 0.5, rel=1e-5)
    assert (early and early.how, none) == ("drawn curve", [None] * 3)


def test_every_source_is_named_as_people_know_it() -> None:
    """`sources.csv` has a row for every folder and no other; a paper is an address."""
    named = pd.read_csv(REFERENCES / "sources.csv", keep_default_na=False)
    folders = sorted(path.name for path in REFERENCES.iterdir() if path.is_dir())
    assert named["source"].tolist() == folders
    assert named["name"].is_unique
    assert named["paper"].str.fullmatch(r"(https://\S+)?").all()
    rl_zoo = references.credits_of("a2c", ["rl_zoo", "unheard_of"])
    assert rl_zoo["rl_zoo"]["name"] == "RL Zoo (SB3)"
    assert rl_zoo["rl_zoo"]["code"].startswith("https://github.com/DLR-RM/rl-trained-agents/tree/")
    assert rl_zoo["unheard_of"] == {"name": "unheard_of", "title": "", "paper": "", "code": ""}
    assert (
        references.credits_of("sac", ["paper"])["paper"]["paper"]
        == "https://arxiv.org/abs/1812.05905"
    )

"""The command line: `encore sac mujoco` runs a grid and reports the result.

`python -m reproduce` is the same command where nothing was installed.

Exit status: 0 nothing is below its reference, 1 something is, 2 a run or the harness failed or the
command could not be understood, 130 stopped by Ctrl-C.
"""

import sys
import webbrowser
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

import agents
from reproduce import ROOT
from reproduce.plan.extension import check_extensions
from reproduce.plan.grid import PUBLISHED, Plan, presets_of
from reproduce.plan.looks import SCHEDULE
from reproduce.plan.places import Cluster, check_writable, fresh_directory
from reproduce.plan.request import (
    keep_looks,
    left_out,
    load_plan,
    load_published_plan,
    make_plan,
    variants_of,
)
from reproduce.plan.sweep import folder_name
from reproduce.run.view import say
from suite.command_line import (
    Parser,
    minutes,
    printable,
    run_main,
    say_todays_name,
    task_from,
    whole,
    whole_numbers,
)
from suite.hardware import num_cores
from suite.settings import UsageError, nearest
from suite.tasks import SUITES, find_task

LAUNCHERS = ("local", "ray")
FILM_SECONDS = 10.0
"""Between two lines about a film, where there is no terminal."""
VERBS = (
    "report",
    "verify",
    "evaluate",
    "video",
    "export",
    "compare",
    "throughput",
    "list",
    "published",
    "docs",
    "site",
    "track",
    "watch",
    "control",
)
EPILOG = """\
other commands:
  report AGENT SUITE           gather, check and draw again what was run, or is published
  verify AGENT [RUN]           make a recorded run's beginning again, compare byte by byte
  evaluate RUN --episodes N    score the policy that a run saved
  video AGENT SUITE            film an episode that a run was scored by (--task T --seed K)
  export RUN --onnx [FILE]     write the policy that a run saved for ONNX runtimes
  compare RUNS_A RUNS_B        before-and-after table of two folders of runs
  throughput                   speeds as shares of the machine's, and the gate on them
  list [--like SOURCE]         agents, suites, tasks, sources, published results; or one source
  published [--check]          draw all of results/published again, or say what is out of date
  docs [--check]               generate the pages' tables again, or say which are out of date
  site [--out DIR]             build the site over everything that is published
  track KIND RUNS LOGDIR       mirror recorded runs into tensorboard or wandb
  watch [RUNS_DIR]             show a grid that another process or machine runs, live
  control PEER AGENT SUITE     run somebody else's program, record it as ours, make it a reference
"""


def command() -> None:
    """Run the console command `encore`."""
    sys.exit(run_main(main))


def _program() -> str:
    """Return how this program was started: its name, or the module's."""
    return "encore" if Path(sys.argv[0]).stem == "encore" else "python -m reproduce"


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    verb = argv[0] if argv and argv[0] in VERBS else "run"
    if verb == "run" and argv and not argv[0].startswith("-") and argv[0] not in agents.AGENTS:
        raise UsageError(f"unknown agent {argv[0]!r}{nearest(argv[0], (*agents.AGENTS, *VERBS))}")
    if verb == "run" and not argv:
        raise UsageError(f"name an agent and a suite, for example: {_program()} sac mujoco")
    actions = {
        "run": run,
        "report": report_again,
        "verify": verify,
        "evaluate": evaluate,
        "video": video,
        "export": export,
        "compare": compare,
        "throughput": throughput,
        "list": list_all,
        "published": draw_published,
        "docs": write_docs,
        "site": build_site,
        "track": track,
        "watch": watch,
        "control": control,
    }
    return actions[verb](argv if verb == "run" else argv[1:])


def run(argv: Sequence[str]) -> int:
    """Plan, run, gather, check, draw."""
    parser = _parser("", "regenerate a paper's curves and judge them", epilog=EPILOG)
    _add_grid(parser)
    seeds = _add_size(parser)
    seeds.add_argument(
        "--until-decided",
        action="store_true",
        help="look at 5, 10 and 20 seeds; more are run only where a task is undecided",
    )
    parser.add_argument("--max-seeds", type=int, metavar="N", help="with --until-decided: 5 to 20")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:<i>")
    parser.add_argument(
        "--launcher", default="local", help="local (default) or ray: on a cluster, see docs/ray.md"
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="auto: the cluster that this machine is part of (default: a Ray of its own)",
    )
    parser.add_argument(
        "--no-published",
        action="store_true",
        help="run what is finished under results/published all the same",
    )
    _add_older(parser)
    _add_context(parser)
    parser.add_argument(
        "--checkpoint-minutes",
        type=minutes,
        metavar="N",
        help="time between two checkpoints of a run (default: 5; 0: at every update)",
    )
    parser.add_argument(
        "--drop-checkpoints",
        action="store_true",
        help="keep no checkpoint of finished runs: a larger --env-steps cannot extend them then",
    )
    parser.add_argument(
        "--keep-best",
        action="store_true",
        help="keep the policy of each run's best evaluation, too: `evaluate RUN --best`",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start anew, in a folder of its own inside the runs directory",
    )
    parser.add_argument(
        "--track",
        default="",
        metavar="KIND",
        help="mirror runs into tensorboard or wandb while they are written",
    )
    _add_open(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    options = parser.parse(argv)
    _check_size(options, options.launcher)
    if options.track:
        from reproduce.extras.track import check_kind

        check_kind(options.track)
    if options.max_seeds is not None and not options.until_decided:
        raise UsageError("--max-seeds needs --until-decided; --num-seeds runs so many at once")
    if options.max_seeds is not None and not SCHEDULE[0] <= options.max_seeds <= SCHEDULE[-1]:
        raise UsageError(
            f"--max-seeds must be {SCHEDULE[0]} to {SCHEDULE[-1]}, not {options.max_seeds}"
        )
    if options.launcher not in LAUNCHERS:
        near = nearest(options.launcher, LAUNCHERS)
        raise UsageError(f"--launcher: unknown launcher {options.launcher!r}{near}")
    check_writable(options.runs_dir)
    if options.launcher == "ray":
        from reproduce.run.ray.pool import connect

        with connect(options.ray_address) as cluster:
            return _run_grid(options, cluster)
    if options.ray_address is not None:
        raise UsageError("--ray-address needs --launcher ray")
    return _run_grid(options, None)


def _make_plan(options: Namespace, cluster: Cluster | None) -> Plan:
    plan = make_plan(
        options.agent,
        options.suite,
        source=options.like,
        tasks=options.tasks,
        budget=options.budget,
        env_steps=options.env_steps,
        num_seeds=options.max_seeds or SCHEDULE[-1] if options.until_decided else options.num_seeds,
        seeds=options.seeds,
        until_decided=options.until_decided,
        workers=options.workers,
        device=options.device,
        runs_dir=fresh_directory(options.runs_dir) if options.fresh else options.runs_dir,
        settings=options.settings,
        published=not options.no_published,
        accept_older_code=options.accept_older_code,
        checkpoint_minutes=options.checkpoint_minutes,
        drop_checkpoints=options.drop_checkpoints,
        keep_best=options.keep_best,
        cluster=cluster,
    )
    plan = keep_looks(plan, until_decided=options.until_decided)
    check_extensions(plan, plan.runs())
    plan.check_memory()
    return plan


def _run_grid(options: Namespace, cluster: Cluster | None) -> int:
    chosen = variants_of(options.agent, options.suite, options.like, options.settings)
    if len(chosen) > 1:
        return _run_sweep(options, cluster, chosen)
    plan = _make_plan(options, cluster)
    say_todays_name(options.like, plan.source)
    console = _console()
    console.print(_plan_table(plan))
    _say_outlook(plan, console)
    for line in left_out(plan) if options.tasks is None else ():
        say(console, line)
    if options.until_decided:
        looks = next(iter(plan.looks.values()))
        say(console, f"Declared: {looks}; more are run only where a task is undecided")
    for task, looks in plan.looks.items():
        if not set(plan.seeds) <= set(looks.seeds):
            say(console, f"{task} was started with {looks}; with more it is exploratory")
    for line in _older_lines(plan):
        say(console, line)
    if options.dry_run:
        return 0
    status = _run_plan(plan, console, track=options.track, context=options.context)
    return _open(options, plan, status)


def _run_sweep(options: Namespace, cluster: Cluster | None, chosen: Sequence[Sequence[str]]) -> int:
    """Run a grid for every variant of the settings, and compare each with the first."""
    if options.until_decided:
        raise UsageError("--until-decided is of one grid: leave it out, or all values but one")
    root = fresh_directory(options.runs_dir) if options.fresh else options.runs_dir
    plans = []
    for settings in chosen:
        own = {"settings": list(settings), "runs_dir": root / folder_name(settings)}
        plans.append(_make_plan(Namespace(**(vars(options) | own | {"fresh": False})), cluster))
    say_todays_name(options.like, plans[0].source)
    from reproduce.extras import sweep

    sweep.refuse_alike(plans)
    console = _console()
    console.print(sweep.plan_table(plans))
    return 0 if options.dry_run else sweep.run(plans, root, console)


def report_again(argv: Sequence[str]) -> int:
    """Do everything but run, for a plan that was run before."""
    parser = _parser("report ", "gather, check and draw again what was run")
    _add_grid(parser)
    _add_older(parser)
    _add_context(parser)
    _add_open(parser)
    options = parser.parse(argv)
    check_writable(options.runs_dir)
    where = (options.agent, options.suite, options.like)
    console = _console()
    if (plan := load_published_plan(*where, options.runs_dir)) is not None:
        folder = f"results/published/{'/'.join(plan.published_folder.parts[-2:])}"
        say(console, f"Nothing was run in {options.runs_dir} yet; this is {folder}:")
    else:
        plan = load_plan(*where, options.runs_dir)
    plan = replace(plan, accept_older_code=plan.accept_older_code or options.accept_older_code)
    say_todays_name(options.like, plan.source)
    return _open(options, plan, _report(plan, console, context=options.context))


def verify(argv: Sequence[str]) -> int:
    """Make the beginning of recorded runs again; the exit status is 1 if one differs."""
    parser = _parser("verify ", "make the beginning of a recorded run again, compare its rows")
    parser.add_argument("agent", help=", ".join(agents.AGENTS))
    parser.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help="default: the quickest that counts"
    )
    parser.add_argument("--seconds", type=float, default=20.0, metavar="N", help="for each run")
    words = list(argv)
    if "--seconds" in words:  # flags go last: argparse wants the folders in one piece
        place = words.index("--seconds")
        words = [*words[:place], *words[place + 2 :], *words[place : place + 2]]
    options = parser.parse(words)
    if not 0 < options.seconds < float("inf"):
        raise UsageError(f"--seconds must be above 0, not {options.seconds}")
    from reproduce.extras import verify as verifying

    default = None if options.runs else verifying.default_run(options.agent)
    if not options.runs and default is None:
        print(f"no published run of {options.agent} counts today, so none is verified: name a RUN")
    status = 0
    for run in options.runs or filter(None, [default]):
        outcome = verifying.verify(options.agent, run, options.seconds)
        print(f"{'ok' if outcome.same else 'DIFFERS'} {outcome.text}", flush=True)
        status = max(status, not outcome.same)
    return int(status)


def evaluate(argv: Sequence[str]) -> int:
    """Score the policy that a run saved."""
    parser = _parser("evaluate ", "score the policy that a run saved")
    parser.add_argument("run", type=Path, help="a run's folder: .../<task>/seed-<k>")
    parser.add_argument("--episodes", type=int, default=10, metavar="N")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--sampled", action="store_true", help="draw actions from the policy")
    actions.add_argument(
        "--deterministic",
        action="store_true",
        help="take its mode (default: as the run was scored)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the environments")
    parser.add_argument("--best", action="store_true", help="its best policy, if it kept that")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film the first episode")
    _add_task_from(parser)
    options = parser.parse(argv)
    _import_task(options)
    from reproduce.extras.evaluate import evaluate_run, film_first

    sampled = options.sampled if options.sampled or options.deterministic else None
    result = evaluate_run(
        options.run,
        episodes=options.episodes,
        sampled=sampled,
        seed=options.seed,
        best=options.best,
        video=options.video,
    )
    interval = ""
    if result["ci_low"] is not None:
        interval = f" (95 % interval {result['ci_low']:.4g} to {result['ci_high']:.4g})"
    print(
        f"{result['task']}: mean return {result['mean_return']:.4g}{interval} over "
        f"{result['num_episodes']} episodes, {result['rule']} actions"
    )
    if options.video:
        print(film_first(options.run, result, options.video, _follow).sentence())
    return 0


def video(argv: Sequence[str]) -> int:
    """Film an episode that a run of a grid was scored by."""
    parser = _parser("video ", "film an episode that a run of a grid was scored by")
    _add_grid(parser)
    parser.add_argument("--task", required=True, metavar="TASK")
    parser.add_argument("--seed", type=int, required=True, metavar="SEED")
    parser.add_argument("--best", action="store_true", help="its best policy, if it kept that")
    parser.add_argument(
        "--video",
        type=Path,
        metavar="FILE",
        help="default: films/<task>-seed-<k>.mp4 in the grid's folder, whose page then shows it",
    )
    options = parser.parse(argv)
    from reproduce.extras.video import film_of_grid

    film = film_of_grid(
        options.agent,
        options.suite,
        options.task,
        options.seed,
        follow=_follow,
        source=options.like,
        runs_dir=options.runs_dir,
        best=options.best,
        video=options.video,
    )
    print(film.sentence())
    return 0


def export(argv: Sequence[str]) -> int:
    """Write the policy that a run saved in another form."""
    parser = _parser("export ", "write the policy that a run saved in another form")
    parser.add_argument("run", type=Path, help="a run's folder: .../<task>/seed-<k>")
    parser.add_argument(
        "--onnx",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="the file to write (default: <task>.onnx)",
    )
    parser.add_argument("--best", action="store_true", help="its best policy, if it kept that")
    _add_task_from(parser)
    options = parser.parse(argv)
    _import_task(options)
    if options.onnx is None:
        raise UsageError("say in which form: --onnx [FILE]")
    from reproduce.extras.export import export_onnx

    file = None if options.onnx == Path() else options.onnx
    file, lines = export_onnx(options.run, file, best=options.best)
    print(f"written: {file}")
    for line in lines:
        print(f"  {line}")
    return 0


def _add_task_from(parser: Parser) -> None:
    """Add `--task-from`: a policy's file alone has no module imported."""
    parser.add_argument(
        "--task-from",
        type=task_from,
        metavar="MODULE:ID",
        help="import the module of the policy's task, which you trust",
    )


def _import_task(options: Namespace) -> None:
    if options.task_from:
        find_task(options.task_from)


def _follow(frames: Iterable[Any], number: int) -> Iterator[Any]:
    """Show how many of a film's frames are drawn; without a terminal, a line now and then."""
    import time

    from rich.progress import track

    console, said = _console(), time.monotonic()
    if console.is_terminal:
        yield from track(frames, "filming", number, console=console, transient=True)
        return
    for count, frame in enumerate(frames):
        if time.monotonic() - said >= FILM_SECONDS:
            said = time.monotonic()
            say(console, f"filming: {count:,} of {number:,} frames")
        yield frame


def compare(argv: Sequence[str]) -> int:
    """Print a before-and-after table of two folders of runs."""
    parser = _parser("compare ", "before-and-after table of two folders of runs")
    parser.add_argument("runs_a", type=Path, help="for example runs/sac-mujoco/paper")
    parser.add_argument("runs_b", type=Path)
    options = parser.parse(argv)
    from reproduce.extras.compare import compare as compare_runs

    rows = compare_runs(options.runs_a, options.runs_b)
    table = Table(title=printable(f"A: {options.runs_a}   B: {options.runs_b}"))
    for name in ("task", "env steps", "A, mean (n)", "B, mean (n)", "B - A [95 %]", "speed B / A"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for row in rows.to_dict("records"):
        table.add_row(
            printable(row["task"]),
            f"{row['env_steps']:,}",
            f"{row['score_mean_a']:,.4g} ({row['num_seeds_a']})",
            f"{row['score_mean_b']:,.4g} ({row['num_seeds_b']})",
            f"{row['difference']:+,.4g} [{row['ci_low']:,.4g}, {row['ci_high']:,.4g}]",
            f"{row['speed_ratio']:.2f}",
        )
    _console().print(table)
    return 0


def throughput(argv: Sequence[str]) -> int:
    """Print speeds as shares of what the machine can do, and whether the gate's tiers alarm."""
    parser = _parser("throughput ", "speeds as shares of the machine's, and the gate on them")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all of them")
    tiers = parser.add_mutually_exclusive_group()
    tiers.add_argument("--exact", action="store_true", help="only count what updates do; no clock")
    tiers.add_argument("--pair", metavar="REV", help="compare this tree with another commit")
    tiers.add_argument(
        "--history",
        type=Path,
        metavar="CSV",
        help="append the shares to a file and draw it beside it, with its change points",
    )
    parser.add_argument(
        "--update", action="store_true", help="declare what is found as the baseline"
    )
    options = parser.parse(argv)
    if options.update and (options.workloads or options.pair):
        raise UsageError("--update declares every workload: leave out --pair and the names")
    from reproduce.speed import gate, history, workloads
    from reproduce.speed import shares as speeds

    console, names = _console(), options.workloads
    if options.pair:
        verdicts = gate.pair(options.pair, names or workloads.GATED)
    elif options.exact:
        counts = gate.count_all(names or workloads.UPDATES)
        if options.update:
            print(gate.write_exact(counts))
            return 0
        verdicts = gate.judge_exact(counts)
    else:
        with console.status("measuring"):
            shares = speeds.measure_all(names or list(workloads.MEASURED))
        console.print(speeds.share_table(shares))
        if options.history:
            print(history.append(options.history, shares))
        if options.update:
            print(speeds.write_shares(shares))
            return 0
        verdicts = gate.judge_shares([share for share in shares if share.name in workloads.GATED])
    alarms, judged = 0, 0
    for verdict in verdicts:
        alarms, judged = alarms + verdict.alarm, judged + verdict.judged
        word = "ALARM" if verdict.alarm else "ok" if verdict.judged else "not judged"
        text = f"{word} {verdict.name}: {verdict.text}"
        say(console, text, "bold red" if verdict.alarm else "")
    if options.pair and not judged:
        raise UsageError(f"nothing could be compared with {options.pair}: choose another commit")
    return 1 if alarms else 0


def list_all(argv: Sequence[str]) -> int:
    """Print agents with suites and sources, suites with tasks, published results; or one source."""
    parser = _parser("list", "agents, suites, tasks, sources, published results")
    parser.add_argument("--like", metavar="SOURCE", help="print what this source set and measured")
    options = parser.parse(argv)
    if options.like is not None:
        from reproduce.extras.sources import describe_source

        name, text = describe_source(options.like)
        say_todays_name(options.like, name)
        print(text)
        return 0
    from reproduce.extras import control as controls

    for name in agents.AGENTS:
        print(f"agent {name}")
        try:
            presets = presets_of(name)
        except UsageError as error:
            print(f"  {error}")
            continue
        for suite in dict.fromkeys(suite for suite, _ in presets):
            sources = ", ".join(source for of, source in presets if of == suite)
            print(f"  {suite}: {sources}")
    for suite, tasks in SUITES.items():
        print(f"suite {suite} ({len(tasks)} tasks): {' '.join(tasks)}")
    for peer in controls.peers():
        print(f"control {peer}: {', '.join(controls.agents_of(peer))}")
    for page in sorted(PUBLISHED.glob("*/*/verdicts.csv")):
        print(f"published {page.parent.relative_to(PUBLISHED)}: {page.parent}")
    return 0


def draw_published(argv: Sequence[str]) -> int:
    """Draw every published folder again, or say which tables are out of date."""
    parser = _parser("published ", "keep every published folder small and draw it again")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse(argv)
    from reproduce.extras.published import find_plans, refresh, stale_table

    stale = []
    for plan in find_plans(PUBLISHED):
        if not options.check:
            refresh(plan)
            print(plan.directory / "index.html")
        elif name := stale_table(plan):
            stale.append(str(plan.directory / name))
    if stale:
        print(f"out of date: {', '.join(stale)}: run `make published`", file=sys.stderr)
    return int(bool(stale))


def write_docs(argv: Sequence[str]) -> int:
    """Generate the blocks of README and documentation again, or say which are out of date."""
    parser = _parser("docs ", "generate the blocks of README and documentation again")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse(argv)
    from reproduce.extras.docs.pages import stale_pages, write_pages

    if not options.check:
        for page in write_pages(ROOT):
            print(page)
    elif stale := stale_pages(ROOT):
        print(f"out of date: {', '.join(map(str, stale))}: run `make docs`", file=sys.stderr)
        return 1
    return 0


def build_site(argv: Sequence[str]) -> int:
    """Build the site over everything that is published, and over grids that are named."""
    parser = _parser("site ", "build the site over everything that is published")
    parser.add_argument("--out", type=Path, default=Path("site"), metavar="DIR", help="its folder")
    parser.add_argument(
        "--runs-dir",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="show the grids of these folders beside what is published: before and after",
    )
    _add_open(parser)
    options = parser.parse(argv)
    from reproduce.extras.site.build import write_site

    page = write_site(options.out, options.runs_dir)
    print(page)
    if options.open:
        webbrowser.open(page.absolute().as_uri())
    return 0


def track(argv: Sequence[str]) -> int:
    """Mirror recorded runs into TensorBoard or Weights & Biases."""
    from reproduce.extras.track import LOOK, mirror

    parser = _parser("track ", "mirror recorded runs into tensorboard or wandb")
    parser.add_argument("kind", help=", ".join(LOOK))
    parser.add_argument("runs", type=Path, help="a folder with runs below it, for example runs")
    parser.add_argument("logdir", type=Path, help="where the mirrors go")
    options = parser.parse(argv)
    num_runs = mirror(options.kind, options.runs, options.logdir)
    where = LOOK[options.kind].format(options.logdir)
    print(f"{num_runs} runs mirrored; look at them with: {where}")
    return 0


def watch(argv: Sequence[str]) -> int:
    """Show a grid that another process or machine runs until it has ended."""
    from reproduce.run import watch as watching
    from reproduce.run.view import View

    parser = _parser("watch ", "show a grid that another process or machine runs, live")
    parser.add_argument(
        "grid",
        nargs="*",
        metavar="RUNS_DIR | AGENT SUITE",
        help="a folder with grids below it, of which the last to be started is shown (default: "
        "the runs directory); or a grid",
    )
    parser.add_argument("--like", metavar="SOURCE", help="of AGENT SUITE; default: the suite's")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")
    options = parser.parse(argv)
    if len(options.grid) > 2 or (options.like and len(options.grid) < 2):
        raise UsageError("name a runs directory or an agent and a suite, for example: sac mujoco")
    if len(options.grid) == 2:
        agent, suite = options.grid
        plan = load_plan(agent, suite, options.like, options.runs_dir)
    else:
        folder = Path(options.grid[0]) if options.grid else options.runs_dir
        plan = watching.load_grid(watching.find_grid(folder))
    console = _console()
    say(console, f"{plan.title}, in {plan.directory}; Ctrl-C ends the view, not the runs")
    with View(console) as view:
        board = watching.watch(plan, view)
    return 2 if board.count("failed") else 0


def control(argv: Sequence[str]) -> int:
    """Run somebody else's program as a control; with `--publish` make it a reference."""
    from reproduce.extras import control as controls
    from reproduce.extras.publish_control import check_publishable, publish

    parser = _parser("control ", "run somebody else's program, record it as ours")
    parser.add_argument("peer", help=", ".join(controls.peers()))
    _add_grid(parser)
    _add_size(parser)
    _add_older(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write what was measured to results/references/<peer>_control",
    )
    options = parser.parse(argv)
    _check_size(options)
    plan = controls.make_control(
        options.peer,
        options.agent,
        options.suite,
        source=options.like,
        tasks=options.tasks,
        budget=options.budget,
        env_steps=options.env_steps,
        num_seeds=options.num_seeds,
        seeds=options.seeds,
        workers=options.workers,
        runs_dir=options.runs_dir,
        settings=options.settings,
        accept_older_code=options.accept_older_code,
    )
    say_todays_name(options.like, plan.source)
    check_extensions(plan, plan.runs())
    plan.check_memory()
    if options.publish:
        check_publishable(plan)
    console = _console()
    console.print(_plan_table(plan))
    for departure in plan.departures:
        say(console, departure)
    if options.dry_run:
        return 0
    controls.refuse_missing(plan.peer)
    status = _run_plan(plan, console)
    if options.publish and status < 2:
        say(console, f"Published: {publish(plan)}; docs/controls.md says what a reference needs")
    return status


def _run_plan(plan: Plan, console: Console, *, track: str = "", context: bool = False) -> int:
    from reproduce.extras.track import mirrored
    from reproduce.pipeline import gather, next_looks
    from reproduce.run.launch import launch
    from reproduce.run.lease import Leases
    from reproduce.run.view import View

    while True:
        if plan.groups():
            plan.refuse_mixture()
            Leases(plan.directory, plan.name_of_settings).refuse_rivals()
        plan.directory.mkdir(parents=True, exist_ok=True)
        plan.save()
        try:
            with mirrored(plan, track, lambda line: say(console, line)), View(console) as view:
                board = launch(plan, view)
        except KeyboardInterrupt:
            command = f"{plan.command()} --track {track}" if track else plan.command()
            say(console, "Stopped. Finished runs are kept; go on with:\n  " + command)
            return 130
        failed = [row for row in board.rows if row.state == "failed"]
        failures = {(row.run.task, row.run.seed): row.error for row in failed}
        num_seeds = next_looks(plan, gather(plan, failures)["verdicts"])
        if num_seeds is None:
            return _report(plan, console, failures, context=context)
        undecided = [task for task in plan.tasks if num_seeds[task] > plan.num_seeds[task]]
        say(console, f"Undecided, and looked at again with more seeds: {', '.join(undecided)}")
        plan = replace(plan, num_seeds=num_seeds)


def _report(
    plan: Plan,
    console: Console,
    failures: Mapping[tuple[str, int], str] = MappingProxyType({}),
    *,
    context: bool = False,
) -> int:
    from reproduce.pipeline import (
        departures,
        exit_status,
        gather,
        saved_by_looks,
        tally,
        write_report,
    )
    from reproduce.report.page import verdict_lines

    tables = gather(plan, failures)
    write_report(plan, tables, context=context)
    verdicts, suite, runs = (tables[name] for name in ("verdicts", "suite", "runs"))
    console.print(verdict_lines(verdicts, suite, plan.title))
    for row in runs[runs.status != "finished"].itertuples():
        say(console, f"{row.task} seed {row.seed} {row.status} {row.error}".rstrip(), "bold red")
        say(console, str(row.log_tail))
    say(console, tally(runs.status))
    say(console, saved_by_looks(plan, verdicts, runs))
    if unmatched := departures(plan, verdicts):
        say(console, "Not matched to the reference: " + "; ".join(unmatched))
    say(console, f"Tables, figures and page: {plan.directory / 'index.html'}")
    return exit_status(verdicts, suite, runs.status)


def _plan_table(plan: Plan) -> Table:
    groups = plan.groups()
    caption = (
        f"{len(groups)} processes, {plan.workers} side by side on {plan.device}, into "
        f"{plan.directory}."
        if groups
        else f"Every run is finished; tables, figures and page go to {plan.directory}."
    )
    table = Table(
        title=f"{plan.title}, budget {plan.budget}",
        caption=printable(caption),
        caption_justify="left",
    )
    for name in ("task", "env steps", "seeds", "already finished", "to run"):
        table.add_column(name, justify="left" if name == "task" else "right")
    runs = plan.runs()
    for task, env_steps in plan.env_steps.items():
        done = [r.seed for r in runs if r.task == task and r.has_ended]
        to_run = [r.seed for r in runs if r.task == task and r.seed not in done]
        planned = plan.seeds[: plan.num_seeds[task]]
        cells = (" ".join(map(str, seeds)) for seeds in (planned, done, to_run))
        table.add_row(task, f"{env_steps:,}", *cells)
    return table


def _say_outlook(plan: Plan, console: Console) -> None:
    """Print what a plan can decide and what it costs, then the same for every budget."""
    from reproduce.judge import outlook

    rows = outlook.outlooks(plan)
    console.print(outlook.table_of(rows))
    say(console, outlook.cost(plan, rows))
    for line in outlook.budget_lines(plan):
        say(console, line)


def _parser(verb: str, description: str, **kwargs: str) -> Parser:
    from argparse import RawDescriptionHelpFormatter

    return Parser(
        prog=f"{_program()} {verb}".strip(),
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        **kwargs,
    )


def _add_grid(parser: Parser) -> None:
    parser.add_argument("agent", help=", ".join(agents.AGENTS))
    parser.add_argument("suite", help=", ".join(SUITES))
    parser.add_argument("--like", metavar="SOURCE", help="default: the suite's, first in `list`")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")


def _add_size(parser: Parser) -> Any:
    """Add the flags of a grid's size and settings; return the group of those of its seeds."""
    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument("--tasks", **several, metavar="TASK", help="default: all of the suite")
    parser.add_argument("--budget", default="laptop", help="smoke, laptop (default) or paper")
    parser.add_argument(
        "--env-steps", type=whole, metavar="N", help="instead of the budget's: 30000, 30k or 3e4"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes side by side; default: as many as fit"
    )
    parser.add_argument(
        "--set",
        **several,
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a setting; KEY=A,B sweeps over values, or lists: KEY=64,64/256,256",
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--num-seeds", type=int, metavar="N", help="seeds 1 to N")
    seeds.add_argument(
        "--seeds", type=whole_numbers, **several, metavar="SEED", help="1 2 3, 1,2,3 or 1-3"
    )
    return seeds


def _check_size(options: Namespace, launcher: str = "local") -> None:
    """Check the numbers of a grid, and put its seeds in one list.

    Raises:
        UsageError: naming the number.
    """
    for flag in ("env_steps", "num_seeds", "workers"):
        value = getattr(options, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag.replace('_', '-')} must be at least 1, not {value}")
    if options.seeds is not None:
        options.seeds = [seed for seeds in options.seeds for seed in seeds]
    cores = num_cores()
    if options.workers and options.workers > cores and launcher == "local":
        raise UsageError(
            f"--workers: {options.workers} processes side by side slow each other down on "
            f"{cores} cores: use --workers {cores} or fewer"
        )


def _add_older(parser: Parser) -> None:
    parser.add_argument(
        "--accept-older-code",
        action="store_true",
        help="count finished runs of code that was not verified to do what today's does",
    )


def _add_open(parser: Parser) -> None:
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def _open(options: Namespace, plan: Plan, status: int) -> int:
    """Open a plan's page if that is asked for and it was written; return the exit status."""
    if options.open and status != 130:
        webbrowser.open((plan.directory / "index.html").absolute().as_uri())
    return status


def _add_context(parser: Parser) -> None:
    parser.add_argument(
        "--context",
        action="store_true",
        help="draw published curves that do not judge into curves.svg, .png and .pdf, too",
    )


def _older_lines(plan: Plan) -> list[str]:
    """Return a line for every task with finished runs that are not known to be today's code's."""
    from reproduce.plan.older import by_task

    described = by_task(plan.runs())
    return [f"{task}: {sentence}" for task, (_, sentence) in described.items() if sentence]


def _console() -> Console:
    """Return the console; wide enough for tables where output is no terminal.

    What looks like markup, in a name or a path, is printed as it is.
    """
    console = _Console(markup=False, emoji=False)
    if console.is_terminal:
        return console
    return _Console(width=max(console.width, 120), markup=False, emoji=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the end of a reader, such as `head`, to `run_main`; rich would exit with 1."""
        raise BrokenPipeError


if __name__ == "__main__":
    command()

"""`throughput`: speeds as shares of the machine's, and the gate on them."""

from collections.abc import Sequence
from pathlib import Path

from reproduce.commands import flags
from reproduce.run.view import say
from suite.settings import UsageError


def main(argv: Sequence[str]) -> int:
    """Print speeds as shares of the machine's limits, and the gate's alarms."""
    parser = flags.make_parser(
        "throughput", "speeds as shares of the machine's, and the gate on them"
    )
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

    console, names = flags.make_console(), options.workloads
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

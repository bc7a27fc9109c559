"""`throughput`: what updates cost, and whether this tree is slower than another commit."""

from collections.abc import Iterable, Sequence

from reproduce.commands import flags
from reproduce.run.view import say
from reproduce.speed import Finding
from suite.base.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Compare what updates cost, or speeds with another commit's; 1 if anything alarms."""
    parser = flags.make_parser(
        "throughput", "count what updates cost, or compare speeds with another commit's"
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all of them")
    parser.add_argument(
        "--pair", metavar="REV", help="compare this tree's speed with that of another commit"
    )
    parser.add_argument(
        "--update", action="store_true", help="declare the counts as the new baseline"
    )
    options = parser.parse(argv)
    if options.update and (options.workloads or options.pair):
        raise UsageError("--update declares every update: leave out --pair and the names")
    from reproduce.speed import exact, pair, workloads

    if options.pair:
        names = options.workloads or workloads.GATED
        alarms, judged = _show(pair.judge_against(options.pair, names))
        if not judged:
            raise UsageError(
                f"nothing could be compared with {options.pair}: choose another commit"
            )
        return 1 if alarms else 0
    counts = exact.count_all(options.workloads or workloads.UPDATES)
    if options.update:
        exact.write(counts)
        print(exact.BASELINE)
        return 0
    alarms, _ = _show(exact.judge(counts))
    return 1 if alarms else 0


def _show(findings: Iterable[Finding]) -> tuple[int, int]:
    """Print a line per finding; return how many alarm and how many were judged."""
    console, alarms, judged = flags.make_console(), 0, 0
    for finding in findings:
        alarms, judged = alarms + finding.alarm, judged + finding.judged
        word = "ALARM" if finding.alarm else "ok" if finding.judged else "not judged"
        text = f"{word} {finding.name}: {finding.text}"
        say(console, text, "bold red" if finding.alarm else "")
    return alarms, judged

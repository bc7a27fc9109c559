"""`throughput`: what updates cost, and whether this tree is slower than another commit."""

from collections.abc import Sequence

from reproduce.commands import flags
from reproduce.run.view import say
from suite.base.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Compare what updates cost, or speeds with another commit's; 1 if anything alarms."""
    parser = flags.make_parser("throughput")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all of them")
    text = "compare this tree's speed with that of another commit"
    parser.add_argument("--pair", metavar="REV", help=text)
    text = "declare the counts as the new baseline"
    parser.add_argument("--update", action="store_true", help=text)
    options = parser.parse(argv)
    if options.update and (options.workloads or options.pair):
        raise UsageError("--update declares every update: leave out --pair and the names")
    from reproduce.speed import exact, pair, workloads

    if options.update:
        exact.write(exact.count_all())
        print(exact.BASELINE)
        return 0
    if options.pair is not None:
        findings = pair.judge_against(options.pair, options.workloads or [*workloads.WORKLOADS])
    else:
        findings = exact.judge(exact.count_all(options.workloads or workloads.UPDATES))
    console, alarms, judged = flags.make_console(), 0, 0
    for finding in findings:
        alarms, judged = alarms + finding.alarm, judged + finding.judged
        word = "ALARM" if finding.alarm else "ok" if finding.judged else "not judged"
        text = f"{word} {finding.name}: {finding.text}"
        say(console, text, "bold red" if finding.alarm else "")
    if options.pair is not None and not judged:
        raise UsageError(f"nothing could be compared with {options.pair}: choose another commit")
    return 1 if alarms else 0

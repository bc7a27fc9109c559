"""`control`: run another library's program as a grid of ours."""

from collections.abc import Sequence

from reproduce.commands import flags
from reproduce.commands.grid import plan_table, run_plan
from reproduce.controls import peer
from reproduce.controls.publish import check_publishable, publish
from reproduce.plan.request import GRID, SIZE, add_flags, read_request, started_anew
from reproduce.plan.resources import check_memory
from reproduce.plan.status import check_extensions
from reproduce.run.view import say
from suite.base.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Run another library's program as a control; with `--publish` make it a reference."""
    parser = flags.make_parser("control")
    parser.add_argument("peer", help=", ".join(peer.peers()))
    add_flags(parser, (*GRID, *SIZE, "fresh", "dry_run"))
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write what was measured to results/references/<peer>_control",
    )
    options = parser.parse(argv)
    request = started_anew(read_request(options))
    plan = peer.make_control(options.peer, **vars(request))
    check_extensions(plan, plan.runs())
    check_memory(plan)
    if options.publish:
        check_publishable(plan)
    console = flags.make_console()
    console.print(plan_table(plan))
    for departure in plan.departures:
        say(console, departure)
    if request.dry_run:
        return 0
    found = peer.peer_of(plan)
    if not found.python.exists():
        raise UsageError(
            f"the environment of {found.name} is missing: run `make peers PEER={found.name}` first"
        )
    status = run_plan(plan, console)
    if options.publish and status < 2:
        say(console, f"Published: {publish(plan)}; docs/controls.md says what a reference needs")
    return status

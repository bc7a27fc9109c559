"""What all tests share: checks of types, turns side by side, skips of what the machine lacks."""

import dataclasses
import functools
import gc
import importlib.util
import inspect
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import jaxtyping
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

pytest.register_assert_rewrite("tests.messages")  # a wrong message shows both texts

from tests import messages  # noqa: E402
from tests.golden.trees import MISSING  # noqa: E402

TOGETHER = (
    *("tests/reproduce/run/ray/test_pool.py", "tests/browser/test_pages.py"),
    *("tests/reproduce/commands/test_verify.py", "tests/reproduce/commands/test_evaluate.py"),
    *("tests/reproduce/commands/test_site.py", "tests/reproduce/judge/test_fingerprints.py"),
    *("tests/reproduce/commands/test_films.py", "tests/suite/record/test_live.py"),
)
"""Files whose tests one process runs in turns: they share a cluster, a browser, a training, a site
or what was read of all sources."""
BY_CASE = ("tests/agents/test_contract.py",)
"""Files of whose tests one process runs those of a case: they share its training."""
FIRST = (
    *TOGETHER,
    *("tests/golden/test_golden.py", "tests/test_short_trainings.py", "tests/test_resume.py"),
)
"""What takes longest, begun first: at the end no process is left with much."""

CHECKED_CALLS = 2
"""Types and shapes are checked in so many calls of a function in each test; a training makes
thousands, of the same shapes."""


class Checks:
    """Takes the place of `jaxtyping.jaxtyped` in the code that is tested."""

    def __init__(self, jaxtyped: Callable[..., Any]) -> None:
        self._jaxtyped = jaxtyped
        self.num_calls: Counter[int] = Counter()
        """Checked calls in this test, by the number of the function's code."""

    def __call__(self, function: Any = None, **options: Any) -> Any:
        """Return a function, or class, that is checked; without one, a decorator."""
        if function is None:
            return functools.partial(self, **options)
        if dataclasses.is_dataclass(function) and inspect.isfunction(
            vars(function).get("__init__")
        ):
            function.__init__ = self(function.__init__, **options)
            return function
        if not inspect.isfunction(function):
            return self._jaxtyped(function, **options)
        num_calls, code = self.num_calls, id(function.__code__)
        if num_calls[code] >= CHECKED_CALLS:  # a function in a function, defined once more
            return function
        checked: Any = None

        @functools.wraps(function)
        def first_calls_checked(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            nonlocal checked
            if torch.compiler.is_dynamo_compiling() or num_calls[code] >= CHECKED_CALLS:
                return function(*args, **kwargs)  # a compiler traces the function alone
            num_calls[code] += 1
            if checked is None:  # most of what a process imports it never calls
                checked = self._jaxtyped(function, **options)
                assert checked is not None
            return checked(*args, **kwargs)

        return first_calls_checked


checks = jaxtyping.jaxtyped = Checks(jaxtyping.jaxtyped)


@pytest.fixture(autouse=True)
def _each_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check first calls anew, and wait for no disk: no power is lost here."""
    messages.Running.begin(request.node)
    checks.num_calls.clear()
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--types`: checks take more of a short training's time than the training."""
    parser.addoption("--types", action="store_true", help="check types and shapes of calls")
    text = "write what the tests of whole files say to tests/messages.txt; without -n"
    parser.addoption("--messages", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Check types if asked to; take back what `nohup` or a shell's `&` has the tests ignore."""
    if config.getoption("types"):
        jaxtyping.install_import_hook(["suite", "agents", "reproduce"], "beartype.beartype")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among half a million objects of modules, which last."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say in the last lines what this lane has left out."""
    left_out = [] if config.getoption("types") else ["checks of types and shapes (--types)"]
    if words := config.getoption("markexpr"):
        left_out.append(f"what is not `{words}`")
    skipped = terminalreporter.stats.get("skipped", [])
    if runs := sum(MISSING in str(each.longrepr) for each in skipped):
        left_out.append(f"{runs} golden runs ({MISSING}: python -m tests.golden --update)")
    terminalreporter.write_line(f"left out: {', '.join(left_out) or 'nothing'}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    if config.getoption("--messages"):  # a file's messages are those that its tests give now
        files = {messages.file_of(item) for item in items}
        kept = messages.read().items()
        messages.write({key: said for key, said in kept if key.split(": ")[0] not in files})
    missing = {}
    if not torch.cuda.is_available():
        missing["gpu"] = "needs an NVIDIA GPU"
    if not all(map(importlib.util.find_spec, ("tensorboard", "wandb"))):
        missing["tracking"] = "needs TensorBoard and Weights & Biases: make test-all"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _turn(item: pytest.Item) -> int:
    """Return when a test's turn is: those of `FIRST` come first, in that order."""
    turns = (turn for turn, path in enumerate(FIRST) if item.nodeid.startswith(path))
    return next(turns, len(FIRST))


class OneByOne(LoadScopeScheduling):
    """Gives every process its next test when it is free; what belongs together, to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        if file in TOGETHER:
            return file
        case = name.partition("[")[2]
        return file + case if file in BY_CASE and case else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneByOne:
    config.option.loadscopereorder = False  # in the order of `_turn`
    return OneByOne(config, log)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checks of types and shapes: of a training's time they take more than the training."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

"""What must never be unpickled."""

from pathlib import Path


class Bomb:
    """Makes the target, a file, when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._target,)

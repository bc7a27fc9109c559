"""Train with the settings of a record: `python -m reproduce.extras.again`, a program of its own.

Its argument is a file with `{"record": the content of run.json, "out": a folder}`. Presets play no
part in it: a record has all settings, older ones by their names of then.
"""

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

from suite.record.recorder import Recorder
from suite.settings.recorded import recorded_settings


def main(record: dict[str, Any], out: Path) -> int:
    """Train the runs of a record's process."""
    agent = importlib.import_module(f"agents.{record['agent']}")
    settings = recorded_settings(agent.Config, record["config"])
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    run = {key: record[key] for key in ("agent", "suite", "source", "task", "config", "command")}
    config = agent.Config(**values)
    recorder = Recorder(out, run, config.seeds, checkpoint_seconds=math.inf)
    agent.train(config, recorder)
    return recorder.finish()


if __name__ == "__main__":
    order = json.loads(Path(sys.argv[1]).read_bytes())
    sys.exit(main(order["record"], Path(order["out"])))

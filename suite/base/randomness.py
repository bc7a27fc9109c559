"""Named random streams: every seed owns one independent stream per purpose."""

import zlib
from collections.abc import Sequence

import numpy as np


def stream(seed: int, name: str, *counters: int) -> np.random.Generator:
    """Return the generator that `seed` owns for one purpose.

    Streams of different seeds, names or counters are independent (`numpy.random.SeedSequence`
    with a spawn key), so a seed draws the same numbers alone and beside other seeds.

    Args:
        seed: the run's seed, 0 to 2**31 - 1.
        name: the purpose, for example "replay".
        counters: further distinctions, for example the environment steps of an evaluation.
    """
    spawn_key = (zlib.crc32(name.encode()), *counters)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def environment_seeds(seeds: Sequence[int], num_envs: int, name: str, *counters: int) -> np.ndarray:
    """Return a simulator seed for each environment of each seed, `[S, N]` int32; see `stream`."""
    rows = [
        stream(seed, name, *counters).integers(0, 2**31 - 1, size=num_envs, dtype=np.int32)
        for seed in seeds
    ]
    return np.stack(rows)

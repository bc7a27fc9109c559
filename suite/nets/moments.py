"""Running mean and variance of observations, rewards and returns, and scaling by them."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from suite.envs.vector_env import Step


class RunningMoments:
    """Mean and variance of all rows of a shape seen so far (Chan et al. 1979), float64."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.count = 0.0
        self.mean, self.variance = np.zeros(tuple(shape)), np.ones(tuple(shape))

    @classmethod
    def from_weights(cls, weights: dict[str, Tensor]) -> "RunningMoments | None":
        """Remove the result of `weights` from a policy's weights and return it; None if absent."""
        if "obs_mean" not in weights:
            return None
        mean, variance = (weights.pop(name).numpy() for name in ("obs_mean", "obs_variance"))
        moments = cls(mean.shape)
        moments.mean, moments.variance = mean, variance
        return moments

    def weights(self) -> dict[str, Tensor]:
        """Return mean and variance by name, for a policy's file."""
        arrays = {"obs_mean": self.mean, "obs_variance": self.variance}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def copy_from(self, other: "RunningMoments") -> None:
        """Become a copy of other moments."""
        self.count, self.mean, self.variance = other.count, other.mean.copy(), other.variance.copy()

    def add(self, rows: np.ndarray) -> None:
        """Update the moments with rows `[M, *shape]`."""
        num_rows = len(rows)
        if not num_rows:
            return
        mean = rows.mean(0, dtype=np.float64)
        errors = rows - mean
        square = np.square(errors, out=errors).sum(0)
        self.count += num_rows
        share = num_rows / self.count
        change = mean - self.mean
        self.mean = self.mean + share * change
        squares = (1 - share) * (self.variance + share * np.square(change))
        self.variance = squares + square / self.count

    def standardise(self, rows: np.ndarray, clip: float) -> np.ndarray:
        """Return (rows - mean) / deviation, clipped to +-`clip`, float32."""
        scaled = rows - self.mean
        scaled /= np.sqrt(self.variance + 1e-8)
        return np.clip(scaled, -clip, clip, out=scaled).astype(np.float32)


class DeviceMoments:
    """Mean and variance of numbers, kept on their device: `[3]` float64, count, mean, variance."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device=device)

    def add(self, numbers: Float[Tensor, "..."], weights: Float[Tensor, "..."]) -> None:
        """Update the moments; weights are 1 / (numbers that count), and 0 for all others."""
        count, mean, variance = self.values.unbind(0)
        num_rows = (weights > 0).sum()
        batch_mean = (numbers * weights).sum().double()
        batch_variance = ((numbers - batch_mean).square() * weights).sum()
        share, change = num_rows / (count + num_rows), batch_mean - mean
        within = (1 - share) * variance + share * batch_variance
        between = share * (1 - share) * change.square()
        moments = [count + num_rows, mean + share * change, within + between]
        self.values.copy_(torch.stack(moments))

    def std(self) -> Float[Tensor, ""]:
        """Return the standard deviation, float32; 1 before the first numbers."""
        return (self.values[2] + 1e-8).sqrt().float()


class RewardScale:
    """Divides rewards by the running deviation of each environment's discounted sum of rewards.

    Stable-Baselines3 calls it `VecNormalize(norm_reward=True)`. Divided rewards are bounded by
    `clip`.
    """

    def __init__(self, num_envs: int, gamma: float, clip: float) -> None:
        self._gamma, self._clip = gamma, clip
        self._sums, self._moments = np.zeros(num_envs), RunningMoments(())

    def of(self, step: Step) -> Step:
        """Update the scale with one seed's step; return it, its rewards divided and clipped."""
        self._sums = self._sums * self._gamma + step.rewards[0]
        self._moments.add(self._sums[step.valid[0]])
        self._sums[step.ends[0]] = 0.0
        scaled = step.rewards / np.sqrt(self._moments.variance + 1e-8)
        return step._replace(rewards=np.clip(scaled, -self._clip, self._clip))

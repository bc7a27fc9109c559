"""The truncated normal against torch's whole one, and as a density."""

import pytest
import torch
from torch.distributions import Normal

from suite.nets import truncated_normal


@pytest.mark.parametrize("std", [0.05, 0.2, 2.0])
def test_it_is_the_normal_over_its_probability_within(std: float) -> None:
    """Wherever the centre lies, the edges included."""
    centres = torch.linspace(-1, 1, 9, dtype=torch.float64)
    values = torch.linspace(-1, 1, 31, dtype=torch.float64)[:, None].expand(31, 9)
    normal = Normal(centres, std)
    within = normal.cdf(torch.ones(())) - normal.cdf(-torch.ones(()))
    expected = normal.log_prob(values) - within.log()
    given = centres.expand(31, 9)
    torch.testing.assert_close(truncated_normal.log_density(values, given, std), expected)
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[:, None].expand(-1, 9)
    densities = truncated_normal.log_density(grid, centres.expand(20_001, 9), std).exp()
    assert torch.trapezoid(densities, grid, dim=0).tolist() == pytest.approx([1] * 9, abs=1e-5)

"""Columns of `updates.csv`, by agent or form of it, beside those that all have."""

from tests.agents.trainings import VARIANTS

TOGETHER = [variant for variant in VARIANTS if variant.startswith("sac")]
"""Those whose seeds learn side by side."""
SHARED = {"env_steps", "num_updates", "weight_norm"}
WAITS = {"impala": ("learner_idle_share", "actor_idle_share")}
"""What an agent adds to `timing.csv`."""
LOSSES = ("policy_loss", "value_loss", "entropy", "gradient_norm")
ACER = {
    *("q_loss", "q_value", "value", "entropy", "kl", "truncated_share", "gradient_norm"),
    *("statistics_gradient_norm", "projected_gradient_norm", "learning_rate"),
}
UPDATES: dict[str, set[str]] = {
    **{each: {"critic_loss", "q_value", "actor_loss", "entropy", "alpha"} for each in TOGETHER},
    "sac_value": {"critic_loss", "q_value", "actor_loss", "entropy", "value_loss", "value"},
    "sac_discrete, critics": {"critic_loss", "q_value", "entropy", "alpha"},
    "sac_alf, discrete": {"critic_loss", "q_value", "choice_entropy", "choice_alpha"},
    "a2c": {*LOSSES, "explained_variance", "learning_rate"},
    "ppo": {*LOSSES, "approximate_kl", "clipped_share", "explained_variance", "learning_rate"},
    "impala": {
        *(*LOSSES, "mean_rho", "max_rho", "clipped_share", "explained_variance", "learning_rate")
    },
    "acer": ACER,
    "acer_continuous": ACER | {"value_loss"},
}
UPDATES["sac_value, bounds"] = UPDATES["sac_value"]
UPDATES["sac_alf, options"] = UPDATES["sac_alf"] | {"prior_kl"}
for each in ("sac_alf, mixed", "sac_alf, recurrent"):
    UPDATES[each] = UPDATES["sac_alf"] | UPDATES["sac_alf, discrete"]

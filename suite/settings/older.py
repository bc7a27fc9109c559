"""Settings of older records as those of today."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

REMOVED: Mapping[str, Sequence[Any]] = {
    "evaluate_beside": (False, True),
    "separate_optimisers": (False,),
    **{"count_warm_up": (True,), "compensate_policy_period": (True,), "entropy_in_target": (True,)},
    **{"max_log_alpha": (None,), "action_gradient_clip": (None,), "policy_period": (1,)},
    **{"policy_coef": (1.0,), "loss_reduction": ("mean",)},
    **{"convolutions": ("nature",), "lstm_size": (0,), "lstm_inputs": ("action_and_reward",)},
}
"""Settings of older records that are gone, and the values with which a run is as it is today."""


def without_removed(settings: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return recorded settings but for those that are gone and had a value of `REMOVED`.

    Names that an agent has today, which are `known`, mean what they say. A plan's values are text.
    """
    return {
        name: value
        for name, value in settings.items()
        if name in known or _text(value) not in map(_text, REMOVED.get(name, ()))
    }


def _text(value: Any) -> str:
    return str(value).lower()


WITHOUT_EFFECT = ("env_threads",)
"""Settings that no result depends on: a run may go on with other values of them."""


def todays_settings(config_class: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's settings of today; one that is younger than the record has its default.

    Values are those of JSON: a list for a tuple.
    """
    known = {field.name: field.default for field in dataclasses.fields(config_class)}
    defaults = {name: value for name, value in known.items() if value is not dataclasses.MISSING}
    kept = without_removed(settings, known)
    return {**json.loads(json.dumps(defaults)), **kept}

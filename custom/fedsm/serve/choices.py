"""The networks that a client may ask for, by name, and in words why one of them segmented an image."""

from __future__ import annotations

from collections.abc import Sequence

from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, personal
from fedsm.serve.limits import Refused
from fedsm.super_model.model import SELECTOR, SuperModel
from fedsm.super_model.prediction import BatchPrediction


def choices_of(model: SuperModel) -> dict[str, dict]:
    """Name -> options of `SuperModel.predict_batch`, the default first: `selector`, `global`, `personal.SITE`."""
    found: dict[str, dict] = {SELECTOR: {}} if model.rule else {}
    if GLOBAL in model.available:
        found[GLOBAL] = {"use_global": True}
    return found | {personal(site): {"site": site} for site in model.sites if personal(site) in model.available}


def options_of(model: SuperModel, choice: str) -> tuple[str, dict]:
    """A choice and its options; an empty word means the default.

    Raises:
        Refused: there is no such network.
    """
    known = choices_of(model)
    choice = choice or next(iter(known))
    if choice not in known:
        raise Refused(422, "the super model has no such network", f"it has {', '.join(known)}")
    return choice, known[choice]


def names_of_yhat(model: SuperModel) -> list[str]:
    """Whose probabilities a row of yhat holds."""
    return model.sites if model.rule == THRESHOLD else [GLOBAL, *model.sites]


def why(model: SuperModel, choice: str, batch: BatchPrediction, row: int) -> str:
    """Why an image was segmented by the network that was taken, in words."""
    if choice != SELECTOR:
        return f"You asked for the network {choice}; the selector's choice was not used."
    yhat, distance, foreign = batch.selection[1:]
    assert yhat is not None, "a selector has probabilities"
    best, names = int(yhat[row].argmax()), names_of_yhat(model)
    sure, site = percent(float(yhat[row, best])), names[best]
    far = "" if distance is None else f"{float(distance[row]):.1f}"
    if model.rule != MIXTURE and model.policy.majority and len(batch.weights) > 1:
        near = f" Its distance to them is {far} times the usual one." if far else ""
        return f"{_of_volume(model, batch, row)} By itself this slice is most like those of {site} ({sure}).{near}"
    if model.rule != THRESHOLD:
        return f"The selector gives {site} the most weight: {sure}."
    if foreign is not None and bool(foreign[row]):
        return (
            f"Foreign: this image is unlike those of all sites. Its distance to the nearest site, {site}, is {far}"
            f" times what is usual there; the limit is {_limit(model, best)}. So the global network segmented it: look"
            " at this mask with care."
        )
    gamma = model.policy.gamma or 0.0
    if int(batch.selection.choices[row]) == 0:
        needed = f"needs more than {percent(gamma)}"
        return f"The selector is {sure} sure of {site} and {needed}, so the global network segmented it."
    share = float(batch.weights[row, 0])
    mixed = f", with a share of {percent(share)} of the global one" if share else ""
    text = f"The selector is {sure} sure that this image is like those of {site}"
    text += f", so that site's network segmented it{mixed}."
    if far:
        never = "" if foreign is not None else " (this super model calls no image foreign)"
        text += f" Its distance to them is {far} times the usual one{never}."
    return text


def _of_volume(model: SuperModel, batch: BatchPrediction, row: int) -> str:
    """Why a whole volume has one network."""
    foreign, name = batch.selection.foreign, model.models[int(batch.selection.choices[row])]
    if foreign is not None and bool(foreign[row]):
        return (
            "Foreign: most slices of this volume are unlike the images of all sites. So the global network segmented"
            " all of it: look at this mask with care."
        )
    network = "the global network" if name == GLOBAL else f"the network of {name.removeprefix('personal.')}"
    return f"Most slices of this volume select {network}, so all of it gets that one."


def percent(value: float) -> str:
    """`93 %`; never 100 % or 0 % unless it is."""
    text = f"{100 * value:.0f}"
    if text in ("0", "100") and value not in (0.0, 1.0):
        text = "> 99" if value > 0.5 else "< 1"
    return f"{text} %"


def _limit(model: SuperModel, site: int) -> str:
    delta = model.policy.delta
    limit = delta[site] if isinstance(delta, Sequence) else delta
    return "none" if limit is None else f"{limit:g}"

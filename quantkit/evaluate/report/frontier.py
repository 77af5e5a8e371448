"""The frontier of a search: what is lost against time and against size, the budget's lines, the file that was chosen."""

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.accuracy_size import WHISKER
from quantkit.evaluate.report.palette import look
from quantkit.evaluate.report.scatter import Axis, Chart, Mark, labels_for
from quantkit.evaluate.report.svg import line, shape, tag
from quantkit.result import Result, Trial, Tuning


def frontier_chart(result: Result) -> Chart | None:
    """Lay out the picture; None where there was no search, or no trial has a figure."""
    tuning = result.tuning
    shown = [t for t in tuning.trials if t.drop is not None] if tuning else []
    if tuning is None or not shown:
        return None
    timed = any(t.latency is not None for t in shown)
    most = None if tuning.max_size is None else 100 * tuning.max_size
    across = [Axis("time, multiple of float's", tuning.max_latency)] * timed
    across.append(Axis("size, % of float's", most))
    places = {m.name: place for place, m in enumerate(result.models)}
    named = [t.name for t in shown if t.name in places]
    labels = dict(zip(named, labels_for(named), strict=True))
    scale = 100.0 if tuning.is_fraction else 1.0
    unit = f", {numbers.lost_unit(result)}" if tuning.is_fraction else ""
    return Chart(
        title=result.title,
        label=f"lost against float: {tuning.measure}{unit}",
        described=f"what {len(tuning.trials)} trials lose against their time and size",
        reference=Mark(
            name=result.float_model.name,
            look=look(0),
            x=(1.0, 100.0) if timed else (100.0,),
            y=0.0,
            words="the float model",
            tip=f"{result.float_model.name}: the float model",
        ),
        marks=tuple(
            _mark(t, result, tuning, places.get(t.name), labels.get(t.name, ""), timed=timed)
            for t in shown
        ),
        across=tuple(across),
        upwards=False,
        limit=None if tuning.max_drop is None else scale * tuning.max_drop,
        limits=_budget(result, tuning),
        stairs=True,
        keys=_keys(result, tuning, faint=len(named) < len(shown)),
    )


def _mark(
    trial: Trial, result: Result, tuning: Tuning, place: int | None, label: str, *, timed: bool
) -> Mark:
    scale = 100.0 if tuning.is_fraction else 1.0
    is_chosen = trial.name == tuning.chosen
    judged = result.judged_drop(trial.name) if is_chosen else None
    final = tuple(scale * v for v in judged or ())  # the estimate, and its ends
    size = None if trial.size is None else 100 * trial.size
    return Mark(
        name=trial.name,
        look=look(place or 0),
        x=(trial.latency, size) if timed else (size,),
        y=scale * (trial.drop or 0.0),
        interval=(final[1], final[2]) if final else None,
        middle=final[0] if final else None,
        words="" if place is None else f"{trial.made}{', chosen' * is_chosen}",
        tip=_tip(result, tuning, trial),
        label=label,
        faint=place is None,
        chosen=is_chosen,
    )


def _tip(result: Result, tuning: Tuning, trial: Trial) -> str:
    lines = [f"{trial.name}: {trial.made}"]
    lines.append(
        f"lost: {numbers.trial_loss(trial.drop, tuning)} {numbers.lost_unit(result)}".rstrip()
    )
    lines += [f"time: {numbers.ratio(trial.latency)}"] if trial.latency is not None else []
    lines += [f"size: {numbers.percent(trial.size)} of float"] if trial.size is not None else []
    cut = f" of {tuning.choosing:,}, clear by then" if trial.samples < tuning.choosing else ""
    lines.append(f"run on {trial.samples:,}{cut} selection samples")
    judged = result.judged_drop(trial.name) if trial.name == tuning.chosen else None
    if judged is not None:
        lost, low, high = (numbers.trial_loss(v, tuning) for v in judged)
        lines.append(
            f"lost on the {tuning.judging:,} samples of the final check: {lost} ({low} to {high})"
        )
    return "\n".join(lines)


def _budget(result: Result, tuning: Tuning) -> str:
    words = []
    if tuning.max_drop is not None:
        words.append(
            f"{numbers.trial_loss(tuning.max_drop, tuning)} {numbers.lost_unit(result)}".rstrip()
        )
    if tuning.max_latency is not None:
        words.append(f"{numbers.ratio(tuning.max_latency)} time")
    if tuning.max_size is not None:
        words.append(f"{numbers.percent(tuning.max_size)} size")
    return f"budget: {', '.join(words)}" if words else ""


def _keys(result: Result, tuning: Tuning, *, faint: bool) -> tuple[tuple[str, str], ...]:
    keys = []
    if tuning.chosen:
        keys.append((tag("circle", cx=10, cy=0, r=8, class_="chosen"), "chosen"))
    if faint:
        keys.append((shape("circle", 10, 0, 3.5, "faint"), "another is as good in everything"))
    keys.append((line(2, 0, 18, 0, "stairs"), "the best that was found"))
    if result.judged_drop(tuning.chosen) is not None:
        keys.append((WHISKER, f"whisker: on the {tuning.judging:,} samples of the final check"))
    return tuple(keys)

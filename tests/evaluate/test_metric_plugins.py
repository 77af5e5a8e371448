"""Metrics of other packages: found by name, imported only when asked for, checked by `check_metric`."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from evaluate.accuracy_cases import classifier, contenders, evaluated, labelled, rows

from calibrators import plugins
from quantkit import check_metric
from quantkit.cli.app import run
from quantkit.errors import DataError, UsageError
from quantkit.settings import METRICS, EvaluateSettings, metric_plugins

LOGITS = {"logits": np.array([[2.0, 1.0], [0.5, 3.0], [1.0, 1.5]])}
LABELS = np.array([0, 1, 0])


def hit(outputs: dict[str, Any], labels: Any) -> Any:
    return outputs["logits"].argmax(axis=1) == labels


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that a package with metrics of these names is installed."""

    def put(chosen: object, *names: str) -> None:
        points = [EntryPoint(name, "fake_metrics:chosen", "quantkit.metrics") for name in names]
        ours = {"quantkit.metrics": points}
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: ours.get(group, []))
        module = ModuleType("fake_metrics")
        module.__dict__["chosen"] = chosen
        monkeypatch.setitem(sys.modules, "fake_metrics", module)

    return put


def test_a_plug_in_is_a_metric_by_its_name(tmp_path: Path, install: Callable[..., None]) -> None:
    install(hit, "hits")
    models = contenders(tmp_path, classifier(), classifier(noise=0.3))
    data = labelled(60, classifier())
    own = evaluated(models, data, metric="hits").metrics["c1"][0]
    top_1 = evaluated(models, data, metric="top-1").metrics["c1"][0]
    assert own.name == "hits"
    assert (own.value, own.drop, own.drop_interval) == (
        top_1.value,
        top_1.drop,
        top_1.drop_interval,
    )


def test_an_installed_metric_changes_nothing_until_it_is_asked_for(
    tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(hit, "hits")
    monkeypatch.delitem(sys.modules, "fake_metrics")  # importing it would fail
    models = contenders(tmp_path, classifier(), classifier())
    found = evaluated(models, labelled(20, classifier())).metrics["c1"]
    assert found[0].name == "top-1"
    with pytest.raises(UsageError, match="'fake_metrics:chosen' for the metric 'hits' cannot be"):
        evaluated(models, labelled(20, classifier()), metric="hits")


def test_an_unknown_metric_lists_the_built_in_ones_and_the_plug_ins(
    install: Callable[..., None],
) -> None:
    install(hit, "hits")
    assert metric_plugins().names() == (*METRICS, "hits")
    EvaluateSettings(metric="hits")
    with pytest.raises(UsageError) as e:
        EvaluateSettings(metric="hit")
    assert str(e.value) == (
        "metric 'hit' is unknown (did you mean 'hits'?): use one of "
        f"{', '.join(METRICS)}, hits, or module:function."
    )


def test_a_plug_in_that_is_no_function_or_takes_a_name_is_one_sentence(
    tmp_path: Path, install: Callable[..., None]
) -> None:
    models = contenders(tmp_path, classifier(), classifier())
    install(3, "three")
    with pytest.raises(UsageError, match="'fake_metrics:chosen' is no metric: it must name a func"):
        evaluated(models, labelled(20, classifier()), metric="three")
    install(hit, "hits", "top-1")
    with pytest.raises(UsageError, match="takes the metric name 'top-1', which is already in use"):
        evaluated(models, labelled(20, classifier()), metric="hits")


def test_labels_that_a_plug_in_needs(tmp_path: Path, install: Callable[..., None]) -> None:
    install(hit, "hits")
    models = contenders(tmp_path, classifier(), classifier())
    with pytest.raises(DataError, match=r"hits\.needs_labels = False"):
        evaluated(models, {"x": rows(5)}, metric="hits")


def test_a_recipe_may_name_a_plug_in_but_no_module(
    tmp_path: Path,
    install: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(hit, "hits")
    monkeypatch.chdir(tmp_path)
    for name, model in (("f.onnx", classifier()), ("c.onnx", classifier(noise=0.1))):
        Path(name).write_bytes(model.SerializeToString())
    data = labelled(20, classifier())
    np.savez("d.npz", **data)  # type: ignore[arg-type]
    flags = ["f.onnx", "c.onnx", "--data", "d.npz", "--skip", "latency", "--skip", "memory"]
    Path("quantkit.toml").write_text('[evaluate]\nmetric = "hits"\n')
    assert run(["evaluate", *flags]) == 0
    assert "hits" in capsys.readouterr().out
    Path("quantkit.toml").write_text('[evaluate]\nmetric = "fake_metrics:chosen"\n')
    assert run(["evaluate", *flags]) == 2
    assert "names code to import" in " ".join(capsys.readouterr().err.split())


# --- the laws ---


def _loss(outputs: dict[str, Any], _: Any) -> Any:
    return np.abs(outputs["logits"]).sum(axis=1)


_loss.higher_is_better = False  # type: ignore[attr-defined]
_loss.needs_labels = False  # type: ignore[attr-defined]


def test_good_metrics_pass() -> None:
    check_metric(hit, LOGITS, LABELS)
    check_metric(_loss, LOGITS)
    check_metric(lambda _, labels: [len(text) for text in labels], LOGITS, ["a", "bc", ""])


def _changes(outputs: dict[str, Any], labels: Any) -> Any:
    outputs["logits"] *= 2
    return hit(outputs, labels)


def _ranks(outputs: dict[str, Any], _: Any) -> Any:
    return outputs["logits"][:, 0] / outputs["logits"][:, 0].max()


def _odd(outputs: dict[str, Any], labels: Any) -> Any:
    return hit(outputs, labels)


_odd.higher_is_better = "yes"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("metric", "law"),
    [
        (lambda _, __: 0.5, "one number per sample; it returned an array of shape"),
        (lambda _, __: "good", "one number per sample; it returned str"),
        (lambda o, _: o["scores"], "one number per sample; it failed: KeyError"),
        (lambda o, _: o["logits"][:, 0] * np.nan, "scores are finite"),
        (_changes, "outputs and labels are not changed"),
        (_ranks, "does not depend on the samples beside it"),
        (_odd, "higher_is_better is True or False"),
    ],
)
def test_a_broken_law_is_named(metric: Any, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_metric(metric, LOGITS, LABELS)


def test_a_metric_that_draws_is_no_metric() -> None:
    drawn = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="a second call gives the same"):
        check_metric(lambda o, _: drawn.random(len(o["logits"])), LOGITS, LABELS)


def test_the_laws_need_samples_and_labels() -> None:
    with pytest.raises(AssertionError, match="needs_labels is False where there are no labels"):
        check_metric(hit, LOGITS)
    with pytest.raises(ValueError, match="at least two"):
        check_metric(hit, {"logits": np.ones((1, 2))}, LABELS[:1])

"""Results that are hard to show: a gate, many candidates, ugly names, nothing measured."""

from dataclasses import replace

from result_cases import candidate, example_result, float_model

from quantkit.result import (
    Evaluated,
    Fidelity,
    Interval,
    Judged,
    Latency,
    Layer,
    Layers,
    Metric,
    NodeRuns,
    Outcome,
    OutputDrift,
    Result,
    Rule,
    Runtime,
    Trial,
    Tuning,
    Verdict,
)

__all__ = [
    "NASTY",
    "bare",
    "broken_outputs",
    "hard_result",
    "huge_result",
    "judged_result",
    "tuned_result",
    "unlabelled_result",
    "with_layers",
    "without_quantiles",
]

NASTY = '<script>alert("x")</script>\'"&|`*_🚀 </style> --> ]]>'
_MAX_DROP = Rule(key="max_drop", limit=0.01, confidence=0.95)
_MIN_SIZE = Rule(key="min_size_reduction", limit=0.7)


def _judged(rule: Rule, figure: float, estimate: float, outcome: Outcome, sentence: str) -> Judged:
    margin = rule.limit - figure if rule.key.startswith("max") else figure - rule.limit
    return Judged(
        rule=rule,
        outcome=outcome,
        figure=figure,
        estimate=estimate,
        margin=margin,
        sentence=sentence,
    )


def _verdict(model: Evaluated) -> Verdict:
    metric = model.metric
    assert metric is not None
    assert metric.drop is not None
    assert metric.drop_interval is not None
    drop, high, low = metric.drop, metric.drop_interval.high, metric.drop_interval.low
    outcome: Outcome = "pass" if high <= _MAX_DROP.limit else "undecided"
    outcome = "fail" if low > _MAX_DROP.limit else outcome
    words = f"The drop of top-1 may be {100 * high:.2f} points, the gate allows 1.00."
    saved = 1 - model.size.ratio
    small: Outcome = "pass" if saved >= _MIN_SIZE.limit else "fail"
    rules = (
        _judged(_MAX_DROP, high, drop, outcome, words),
        _judged(
            _MIN_SIZE, saved, saved, small, f"{100 * saved:.0f} % smaller, the gate asks for 70 %."
        ),
    )
    order: tuple[Outcome, ...] = ("fail", "undecided", "pass")
    worst = min((r.outcome for r in rules), key=order.index)
    return Verdict(candidate=model.name, outcome=worst, rules=rules)


_TRIALS = (
    ("01", "static", 0.009, 0.27, 0.40, 180, "out"),
    ("02", "static, thorough recovery", 0.0095, 0.27, 0.40, 260, "out"),
    ("03", "static, 2 of 9 layers float", 0.003, 0.31, 0.48, 400, "in"),
    ("04", "static, 3 of 9 layers float", 0.0035, 0.36, 0.55, 400, "in"),
    ("05", "dynamic int8", 0.6, 0.26, 0.70, 12, "out"),
    ("06", "weights only", 0.0, 0.25, 1.0, 400, "in"),
)


def tuned_result(chosen: str = "03", *, met: bool = True, timed: bool = True) -> Result:
    """A search: six files, of which four are the frontier and one goes out."""
    trials = tuple(
        Trial(
            name=name,
            made=made,
            verdict="in" if verdict == "in" else "out",
            drop=drop,
            drop_interval=Interval(low=drop - 0.002, high=drop + 0.002),
            size=size,
            latency=latency if timed else None,
            samples=samples,
            modes={"static": 7, "float": 2},
            seconds=21.5,
        )
        for name, made, drop, size, latency, samples, verdict in _TRIALS
    )
    failed = Trial(name="07", made="static, per tensor", verdict="failed", note="noise")
    plain = example_result()
    models = [
        replace(
            candidate(t.name, drop=(t.drop or 0.0) + 0.001, ratio=t.size or 1.0),
            latency=_timed(t.latency) if timed else (),
        )
        for t in trials
        if t.name in {"01", "03", "06", chosen}
    ]
    tuning = Tuning(
        measure="top-1",
        is_fraction=True,
        trials=(*trials, failed),
        chosen=chosen,
        met=met,
        sentence="Allowing 0.4 points more would save 17 % of the run time.",
        calibration=128,
        choosing=400,
        judging=800,
        max_drop=0.005,
        max_latency=0.7,
        max_size=0.4,
        seconds=312.0,
    )
    return replace(plain, models=(plain.models[0], *models), tuning=tuning)


def _timed(ratio: float | None) -> tuple[Latency, ...]:
    ends = Interval(low=(ratio or 1.0) - 0.01, high=(ratio or 1.0) + 0.01)
    return tuple(
        replace(one, ratio=ratio or 1.0, ratio_interval=ends) for one in candidate().latency
    )


def judged_result(*models: Evaluated) -> Result:
    """The example, judged by a gate."""
    plain = example_result()
    chosen = (plain.models[0], *models) if models else plain.models
    verdicts = tuple(_verdict(m) for m in chosen[1:])
    return replace(plain, models=chosen, rules=(_MAX_DROP, _MIN_SIZE), verdicts=verdicts)


def with_layers(model: Evaluated, count: int, name: str = "/features/{i}/conv/Conv") -> Evaluated:
    """The model with so many layers, and as many products that stay float."""
    layers = tuple(
        Layer(
            node=name.format(i=i),
            op_type="Conv" if i % 5 else "MatMul",
            tensor=name.format(i=i) + "_output_0",
            alone_db=None if i == count - 1 else 18.0 + 60 * i / count,
            share=0.3 * 0.7**i,
            local_db=30.0 + i % 17,
            accumulated_db=24.0 - i % 7,
            weight_db=35.0 + i % 3,
            input_db=None if i % 4 == 0 else 33.0,
            clipped=0.001 * (i % 4),
            fix=f"Keep it in float: --exclude '{name.format(i=i)}'." if i < 20 else "",
        )
        for i in range(count)
    )
    nodes = tuple(
        NodeRuns(
            node=name.format(i=i),
            op_type="Conv",
            runs="float" if i % 3 == 0 else "integer",
            kernel="Conv" if i % 3 == 0 else "QLinearConv",
            why="its weights are int8 and its input is int8: no kernel" if i % 3 == 0 else "",
            fix="quantize with uint8 activations" if i % 3 == 0 else "",
        )
        for i in range(count)
    )
    runtime = Runtime(
        integer=count - len(nodes[::3]),
        products=count,
        share=1 - len(nodes[::3]) / count,
        kernels={"QLinearConv": count - len(nodes[::3]), "Conv": len(nodes[::3]), "Add": 12},
        conversions=2 * len(nodes[::3]),
        nodes=nodes,
        advice=(f"{len(nodes[::3])} Conv stay float: no kernel for int8 activations; use uint8.",),
    )
    return replace(model, layers=Layers(layers=layers, samples=8), runtime=runtime)


def _at(model: Evaluated, ratio: float) -> Evaluated:
    timed = tuple(
        replace(
            x,
            ratio=ratio,
            median_ms=2.0 * ratio,
            ratio_interval=Interval(low=ratio * 0.94, high=ratio * 1.05),
        )
        for x in model.latency
    )
    return replace(model, latency=timed)


def hard_result() -> Result:
    """Six candidates, near each other and far, with ugly names; one broken."""
    names = (
        ("quantkit static, per channel, mse, equalized", 0.0012, 0.265, 0.52),
        (NASTY, 0.0021, 0.262, 0.55),
        ("quantkit dynamic", 0.0004, 0.271, 0.81),
        ("onnxruntime dynamic", 0.006, 0.268, 1.62),
        ("静的量子化 onnxruntime 🧮 percentile 99.999", 0.013, 0.259, 0.6),
        (
            "a_very_long_name_without_any_space_that_goes_on_and_on_for_a_hundred_characters_and_then_ends",
            0.41,
            0.26,
            0.5,
        ),
    )
    long = "/model/encoder/layers/{i}/very/deep/module/hierarchy/with/long/names/attention/self/query/MatMul"
    models = [_at(candidate(n, drop=d, ratio=r), t) for n, d, r, t in names]
    models = [with_layers(m, 300, long if i % 2 else NASTY + "{i}") for i, m in enumerate(models)]
    unsafe = Fidelity(
        plain_db=21.0,
        plain_max=0.9,
        samples=16,
        products=300,
        unsafe=tuple(long.format(i=i) for i in range(40)),
        saturated_db=12.0,
        this_cpu="x86_64 with AVX2, without VNNI: it saturates",
        portable=False,
        sentence="40 of 300 layers can saturate on x86 without VNNI: another CPU answers differently.",
        plain_flips=3,
    )
    models[3] = replace(models[3], fidelity=unsafe, warnings=("Its opset is newer than float's.",))
    return replace(judged_result(*models), title="EfficientNet-Lite0 on 5,000 images of ImageNet")


def unlabelled_result() -> Result:
    """Without labels, gate, latency of all but one, layers and what lies inside."""
    plain = example_result()
    bare = [
        Evaluated(
            name=m.name,
            role=m.role,
            file=m.file,
            size=m.size,
            drift=None
            if m.drift is None
            else replace(m.drift, decision=None, slices=(), worst=(), sentence=""),
        )
        for m in (
            float_model(),
            candidate(),
            candidate("stored", ratio=0.5),
            candidate("rewritten", ratio=0.9),
        )
    ]
    exact = OutputDrift(output="logits", sqnr_db=None)
    last, third = bare[3].drift, bare[2].drift
    assert last is not None
    assert third is not None
    bare[3] = replace(bare[3], drift=replace(last, outputs=(exact,)))
    low = replace(third.outputs[0], sqnr_db=44.4, sqnr_interval=None)
    bare[2] = replace(bare[2], drift=replace(third, outputs=(low,)))
    return replace(plain, models=tuple(bare), notes=(), data=replace(plain.data, labels="none"))


def huge_result(candidates: int = 5, layers: int = 2000, letters: int = 120) -> Result:
    """Many candidates of many layers with long names."""
    name = "/" + "m" * letters + "/{i}/MatMul"
    models = [
        with_layers(candidate(f"candidate {i}"), layers, name + f"/{i}") for i in range(candidates)
    ]
    return judged_result(*models)


def regression(model: Evaluated, value: float, drop: float | None) -> Evaluated:
    """The model with an error as its metric."""
    spread = None if drop is None else Interval(low=drop * 0.5, high=drop * 1.5)
    metric = Metric(
        name="mse", value=value, higher_is_better=False, drop=drop, drop_interval=spread, main=True
    )
    return replace(model, metrics=(metric,))


def untimed(model: Evaluated) -> Evaluated:
    """The model, not timed."""
    none: tuple[Latency, ...] = ()
    return replace(model, latency=none)


def bare(model: Evaluated) -> Evaluated:
    """The model, of which nothing but the file was looked at."""
    return Evaluated(name=model.name, role=model.role, file=model.file, size=model.size)


def broken_outputs(model: Evaluated) -> Evaluated:
    """The model, answering with nothing that is finite."""
    assert model.drift is not None
    lost = OutputDrift(output="logits", sqnr_db=None, not_finite=20_000)
    return replace(model, drift=replace(model.drift, outputs=(lost,)))


def without_quantiles() -> Result:
    """A result that an older version wrote: no SQNR of single samples."""
    plain = example_result()
    models = []
    for model in plain.models:
        outputs = (
            replace(o, per_sample=None) for o in (model.drift.outputs if model.drift else ())
        )
        drift = model.drift and replace(model.drift, outputs=tuple(outputs))
        models.append(replace(model, drift=drift))
    return replace(plain, models=tuple(models))

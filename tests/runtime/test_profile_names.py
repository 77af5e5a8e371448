"""What kernels are called is traced back to nodes, in models that were saved optimized, too."""

from builders import graph, model, node, weight

from quantkit.model.graph.load import load
from quantkit.model.graph.view import view_of
from quantkit.pipeline.measure import costs_of
from quantkit.quantize.plan import Plan
from quantkit.runtime.profile import Kernel, Profile


def test_a_name_that_looks_like_onnxruntimes_own_is_found() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], "fused _1", kernel_shape=[1, 1]),
        node("Conv", ["a", "v"], ["y"], "_1_nchwc", kernel_shape=[1, 1]),
    ]
    weights = {"w": weight(8, 3, 1, 1), "v": weight(8, 8, 1, 1)}
    view = view_of(load(model(graph(nodes, {"x": [1, 3, 4, 4]}, {"y": None}, weights))).model)
    run = [
        node("QLinearConv", ["x"], ["a in another layout"], "fused _1_token_3_nhwc"),
        node("QLinearConv", ["a in another layout"], ["y too"], "_1_nchwc_token_5"),
    ]
    kernels = [Kernel(node=n, seconds=float(i), elements=8) for i, n in enumerate(run, 1)]
    profile = Profile(given=tuple(nodes), kernels=tuple(kernels), total=3.0)
    costs = costs_of(view, Plan(nodes=(), weights=(), min_opset=13), profile, profile)
    assert dict(costs.static) == {"fused _1": 1.0, "_1_nchwc": 2.0}

"""How far onnxruntime's patterns look around a product, by operator."""

# Quantization is moved through these before patterns are matched.
MOVED_THROUGH = frozenset(
    {"Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose"}
    | {"Unsqueeze"}
)

# A stored weight is restored by these when the model is loaded.
RESTORES = frozenset(
    {"Add", "Cast", "DequantizeLinear", "Div", "Gather", "Identity", "Mul", "Reshape", "Sub"}
    | {"Transpose", "Unsqueeze"}
)

import calibrators
from calibrators import minmax


def test_a() -> None:
    print(calibrators)
    assert minmax is not None

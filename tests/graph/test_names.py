from quantkit.model.graph.edit import Names


def test_a_free_name_is_given_as_it_is() -> None:
    assert Names().fresh("w") == "w"


def test_a_name_in_use_gets_a_number_that_is_free_too() -> None:
    names = Names(["w", "w_1"])
    assert [names.fresh("w"), names.fresh("w")] == ["w_2", "w_3"]


def test_a_name_given_up_by_all_is_free_again() -> None:
    names = Names(["w", "w"])
    assert names.renew("w") == "w_1"
    assert names.renew("w") == "w"


def test_a_hundred_thousand_of_one_stem_take_no_time() -> None:
    """Quadratic code would look at five billion names."""
    names = Names()
    given = {names.fresh("MatMul") for _ in range(100_000)}
    assert len(given) == 100_000

import itertools
import json
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import GroundlingError, RunError


def _order(count: int, seed: int, replacement: bool) -> SampleOrder:
    return SampleOrder([Sample(str(n), "p") for n in range(count)], seed, replacement)


def _drawn(order: SampleOrder, count: int) -> list[int]:
    return [int(sample.id) for sample in order.draw(count)]


@given(
    count=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    replacement=st.booleans(),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_the_order_depends_on_seed_and_count_alone(count: int, seed: int, replacement: bool, cuts: list[int]) -> None:
    whole = _drawn(_order(count, seed, replacement), sum(cuts) + 5)
    pieces, order = [], _order(count, seed, replacement)
    for cut in cuts:
        pieces += _drawn(order, cut)
        saved = json.loads(json.dumps(order.state_dict()))
        order = _order(count, seed + 1, replacement)
        order.load_state_dict(saved)
    assert pieces + _drawn(order, 5) == whole


@given(count=st.integers(1, 20), seed=st.integers(0, 99), epochs=st.integers(1, 3))
def test_an_epoch_has_every_sample_once(count: int, seed: int, epochs: int) -> None:
    order = _order(count, seed, replacement=False)
    for _ in range(epochs):
        assert sorted(_drawn(order, count)) == list(range(count))


def test_epochs_and_seeds_have_different_orders() -> None:
    order = _order(30, 0, replacement=False)
    first, second = _drawn(order, 30), _drawn(order, 30)
    other = _drawn(_order(30, 1, replacement=False), 30)
    assert first != list(range(30)) and first != second and first != other
    assert _drawn(_order(30, 0, True), 30) != _drawn(_order(30, 1, True), 30)


def test_drawing_with_replacement_is_uniform_and_independent() -> None:
    drawn = _drawn(_order(5, 7, replacement=True), 5000)
    counts = np.array([n for _, n in sorted(Counter(drawn).items())])
    assert ((counts - 1000) ** 2 / 1000).sum() < 18.5  # chi-square, 4 degrees of freedom: 1 in 1,000
    pairs = np.array([n for _, n in sorted(Counter(itertools.pairwise(drawn)).items())])
    assert len(pairs) == 25 and ((pairs - 200) ** 2 / 200).sum() < 51.2  # 24 degrees of freedom: 1 in 1,000


def test_another_number_of_samples_is_refused() -> None:
    state = _order(5, 0, True).state_dict()
    with pytest.raises(RunError, match="there were 5, now there are 6"):
        _order(6, 0, True).load_state_dict(state)
    with pytest.raises(GroundlingError, match="no samples"):
        _order(0, 0, True)


def test_changed_samples_give_a_warning() -> None:
    samples = [Sample("0", "ab", ("c",)), Sample("1", "b", ("d", "é"))]
    state = json.loads(json.dumps(SampleOrder(samples, 0).state_dict()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SampleOrder(list(samples), 0).load_state_dict(state)
    others = [
        [Sample("0", "ab", ("x",)), samples[1]],
        [Sample("0", "a", ("bc",)), samples[1]],
        [Sample("0", "a", ("b", "c")), samples[1]],
        [Sample("00", "ab", ("c",)), samples[1]],
        [Sample("0", "a", ("c",), {"answer": 3}), samples[1]],
        samples[::-1],
    ]
    for changed in others:
        with pytest.warns(UserWarning, match="the 2 samples or their order have changed"):
            SampleOrder(changed, 0).load_state_dict(state)
    del state["sha256"]  # missing in older checkpoints
    SampleOrder(others[0], 0).load_state_dict(state)

"""Rows that predict candidates' tokens, and batches of texts with similar lengths."""

from hypothesis import given
from hypothesis import strategies as st

from groundling.lm.read.batching import batches, decoder_layout, split_wide, tree_layout

token_lists = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=8)


def read_by(layout, row):
    """Return the tokens of the rows that a row attends to, including itself, by depth."""
    rows = layout.visible[row].nonzero()[:, 0].tolist()
    return [layout.tokens[other] for other in sorted(rows, key=lambda r: layout.depths[r])]


@given(token_lists)
def test_each_target_is_predicted_by_the_row_that_has_read_all_tokens_before_it(candidates):
    for layout, root in ((tree_layout(candidates), -1), (decoder_layout(candidates, start_token=9), 9)):
        predicted = iter(layout.targets.T.tolist())
        for candidate in candidates:
            for position, token in enumerate(candidate):
                row, target = next(predicted)
                assert target == token
                assert read_by(layout, row) == [root, *candidate[:position]]
        assert not list(predicted)


@given(token_lists)
def test_decoder_runs_are_contiguous_so_that_relative_positions_hold(candidates):
    layout = decoder_layout(candidates, start_token=9)
    for row in range(len(layout.tokens)):
        seen = layout.visible[row].nonzero()[:, 0].tolist()
        assert seen == list(range(row - layout.depths[row], row + 1))


@given(token_lists)
def test_a_tree_reads_each_distinct_beginning_once(candidates):
    beginnings = {tuple(c[:n]) for c in candidates for n in range(1, len(c))}
    assert len(tree_layout(candidates).tokens) == 1 + len(beginnings)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=30),
    st.integers(1, 200),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from([1, 2_000, float("inf")]),
)
def test_batches_hold_every_index_once_within_their_limits(lengths, max_tokens, max_waste, max_pairs):
    groups = batches(lengths, max_tokens, max_waste, max_pairs)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        group_lengths = [lengths[index] for index in group]
        cells = max(group_lengths) * len(group_lengths)
        within = cells <= max_tokens and cells * max(group_lengths) <= max_pairs
        assert len(group_lengths) == 1 or (within and cells - sum(group_lengths) <= max_waste * sum(group_lengths))


@given(token_lists, st.integers(1, 10))
def test_wide_candidate_sets_are_split_without_loss(candidates, max_rows):
    parts = split_wide(candidates, max_rows)
    assert sorted(index for part in parts for index in part) == list(range(len(candidates)))
    for part in parts:
        assert len(part) == 1 or sum(len(candidates[index]) for index in part) <= max_rows

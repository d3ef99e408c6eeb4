import pytest

from groundling.envs.seeds import held_out_seed
from groundling.envs.vector import TextVectorEnv
from groundling.intervals import wilson_interval
from groundling.worlds.episode import Episode, Played
from groundling.worlds.text.episodes import held_out_seed_of, play, policy_chooser
from tests.conftest import Corridor, TablePolicy


def _envs(num_envs: int) -> TextVectorEnv:
    return TextVectorEnv(Corridor, num_envs, ["left", "right", "stay"], seed_of=held_out_seed_of(num_envs))


def test_episodes_do_not_depend_on_the_number_of_envs() -> None:
    with policy_chooser(TablePolicy(), deterministic=True, seed=0) as player:
        played = [dict(play(player, _envs(num_envs), 10)) for num_envs in (1, 3, 10, 16)]
    results = [{k: (e.seed, e.mission, e.actions) for k, e in one.items()} for one in played]
    assert {k: seed for k, (seed, *_) in results[0].items()} == {k: held_out_seed(k) for k in range(10)}
    assert all(one == results[0] for one in results)


def test_wilson_interval_against_published_values() -> None:
    # Newcombe 1998, table I: 81/263, 15/148, 0/20 and 1/29 with the score method, without continuity correction.
    published = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611)}
    for (successes, count), expected in {**published, (1, 29): (0.0061, 0.1718)}.items():
        assert wilson_interval(successes, count) == pytest.approx(expected, abs=5e-5)
    assert wilson_interval(0, 300)[0] == 0.0 and wilson_interval(300, 300)[1] == 1.0  # not 8.6e-19
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2)


def test_a_figure_is_the_mean_over_episodes_that_have_it() -> None:
    episode_figures = [{"success": 1.0, "return": 2.0}, {"success": 0.0, "return": 4.0, "first_precision": 1.0}]
    played = Played([Episode(figures, k) for k, figures in enumerate(episode_figures)])
    figures = played.figures()
    assert list(figures) == ["success", "return", "first_precision"]
    assert (figures["success"].low, figures["success"].high) == wilson_interval(1, 2)
    assert (figures["return"].value, figures["first_precision"].episodes) == (3.0, 1)


def test_a_corpus_figure_has_an_interval_only_as_the_mean_of_texts() -> None:
    texts = [Episode({"bleu": value, "rouge": value}, k) for k, value in enumerate((0.2, 0.4))]
    figures = Played(texts, {"bleu": 0.25, "rouge": 0.3, "perplexity": 12.0}).figures()
    assert figures["bleu"].value == 0.25 and figures["bleu"].low is None
    assert figures["rouge"].value == pytest.approx(0.3) and figures["rouge"].low is not None
    assert figures["perplexity"].value == 12.0 and figures["perplexity"].text() == "12"
    assert figures["rouge"].text().startswith("0.300 0.2")


def test_differences_are_paired_by_episode() -> None:
    def played(successes: dict[int, float]) -> Played:
        return Played([Episode({"success": s, "length": 1.0}, n) for n, s in successes.items()])

    agent = played({n: float(n % 10 != 0) for n in range(100)})
    clone = played({n: float(n % 2) for n in range(99)})  # fails where the agent fails, and in other episodes
    difference = agent.difference(clone)
    assert difference is not None
    name, figure = difference
    expected = sum(float(n % 10 != 0) - n % 2 for n in range(99)) / 99
    assert (name, figure.episodes) == ("success", 99) and figure.value == pytest.approx(expected)
    assert figure.low is not None and figure.high is not None
    # Narrower than for unpaired episodes, whose standard error is 0.058.
    assert 0 < figure.low < expected < figure.high and figure.high - figure.low < 4 * 0.058 * 0.9
    assert agent.difference(played({})) is None and played({}).difference(agent) is None

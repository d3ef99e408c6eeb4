"""Shared files contain no addresses, keys or paths, but the texts that a model reads are not changed."""

from groundling.config.compose import compose
from groundling.config.facts import shareable, shareable_words
from groundling.evaluation.evaluate import played_with
from groundling.fields import flat


def test_what_is_given_away_has_no_address_and_no_place_inside_a_text() -> None:
    args = {
        "url": "https://ada:hunter2@levels.intern:8443/v1",
        "note": "levels\nof http://10.0.0.7",
        "pools": ["hf://datasets/ada/p", "b", "-file:///home/ada/p.csv"],
        "options": "cache=/home/ada/secret,maps=C:\\ada\\maps (~/q)",
        "files": "a=file:///home/ada/p.csv b: file:/home/ada/q.csv",
        "lines": "look\nat /home/ada/maps",
        "system": {"base_url": "http://10.0.0.7:8000", "api_key_env": "MY_KEY", "text": "1/2, yes / no, </think>"},
        "seed": 1,
    }
    given = {
        "pools": ["b"],
        "options": "cache=secret,maps=maps (q)",
        "files": "a=p.csv b: q.csv",
        "lines": "look\nat maps",
        "system": {"text": "1/2, yes / no, </think>"},
        "seed": 1,
    }
    for node, shared in ((args, given), ({"policy": {"args": args}}, {"policy": {"args": given}})):
        assert shareable(node) == shared == shareable(shared)  # shared files are compared with what would be shared
    assert shareable(args["url"]) == ""


def test_what_a_model_reads_is_given_away_as_it_is() -> None:
    """Otherwise, the loaded agent would differ, and an evaluation could be attributed to a different prompt."""
    args = {
        "system": "/no_think Answer left/right. The rules: https://rules.example/v1",
        "replacements": {"http://a": "/home/ada/key"},
        "thought_ends": "://",
    }
    pool = {"prompt_prefix": "See https://a.org: ", "prompt_suffix": " in /usr/bin/x form", "path": "/home/ada/p.csv"}
    config = {"world": {"actions": ["open https://a.org", "stay"], "args": pool}, "policy": {"args": args}}
    given = {**config, "world": {**config["world"], "args": {**pool, "path": "p.csv"}}}
    assert shareable(config) == given and shareable(flat(config)) == flat(given)
    mine = {"world": {"args": {"actions": "/home/ada/secret/actions.txt", "system": "http://10.0.0.7"}}}  # an env's
    assert shareable(mine) == {"world": {"args": {"actions": "actions.txt"}}}
    words = ["policy.args.system='See https://a.org'", "+arms.a.world.system=at /root/agent x"]
    assert shareable_words([*words, "world.args.system=at /root/agent x"]) == [*words, "world.args.system=at agent x"]
    played = [compose("demo", [f"policy.args={{prompt: conversation, system: '/{word}/turn'}}"]) for word in "ab"]
    assert played_with(played[0]) != played_with(played[1])


def test_a_command_line_is_given_away_without_places() -> None:
    words = ["study", "/home/ada/s.yaml", "seeds=1,2", "arms.a.model.path=/home/ada/m", "--runs", "/home/ada/runs"]
    words += ["x.args={base_url: h, a: 1}", "y.base_url=http://10.0.0.7/v1", "z.api_key_env=MY_KEY", "device=cpu"]
    words += ["world.args={path: /home/ada/p.csv, b: [~/q, 'C:\\\\Users\\\\ada'], c: 1/2}", "p=a=/home/ada/m"]
    plain = ["study", "s.yaml", "seeds=1,2", "arms.a.model.path=m", "--runs", "runs", "device=cpu"]
    assert shareable_words(words) == [*plain, "world.args={path: p.csv, b: [q, 'ada'], c: 1/2}", "p=a=m"]

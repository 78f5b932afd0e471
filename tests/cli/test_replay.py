"""`tokenlane replay` as it is called."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.replay.test_trace import row, write
from tokenlane.cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    lines = [row(700 * at, 2048, [0, at % 7 + 1, at % 7 + 8, at + 100]) for at in range(60)]
    return write(tmp_path / "sevens.jsonl", *lines)


def test_json_has_the_promised_form(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["replay", str(trace), "--policy", "affinity,round-robin,text-tree", "--json"]
    assert main([*argv, "--replicas", "2", "--cache", "100%"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    policies = told.pop("policies")
    blocks = 1 + 14 + 60
    assert told.pop("pooled_bound_hit") == pytest.approx((53 * 3 + 6) / 240)
    assert told.pop("oracle_ttft_mean_s") > 0.02
    assert told == {
        "trace": "sevens",
        "replicas": 2,
        "cache_tokens_per_replica": blocks // 2 * 512,
    }
    assert list(policies) == ["affinity", "round-robin", "text-tree"]
    for figures in policies.values():
        assert set(figures) == {
            "hit", "hit_of_pooled", "ttft_mean_s", "ttft_p99_s", "ttft_of_oracle", "imbalance_60s",
        }  # fmt: skip
        assert 0 < figures["hit_of_pooled"] <= 1
    assert policies["affinity"]["hit"] > policies["round-robin"]["hit"]


def test_a_table_for_people_and_a_plot(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "replay.png"
    assert main(["replay", str(trace), "--first-s", "10", "--plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sevens: 15 requests")
    assert [line.split()[0] for line in lines[4:]] == [
        "affinity", "queue-own", "text-tree", "least-requests", "round-robin",
    ]  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--policy", "afinity"], "--policy: 'afinity' is unknown; did you mean affinity?"),
        (["--replicas", "0"], "--replicas and --speed must be positive"),
        (["--gateways", "0"], "--gateways must be positive"),
        (["--gateways", "2", "--share-delay", "-1"], "--share-delay not negative"),
        (["--share-prefixes"], "--share-prefixes needs --share-delay"),
        (["--no-events"], "--share-delay and --no-events need --gateways"),
        (["--first-s", "0"], "--first-s leaves no request"),
        (["--policy", "random", "--plot", "/nowhere/x.png"], "/nowhere/x.png: cannot be written"),
    ],
)
def test_wrong_flags_are_one_sentence(
    trace: Path, flags: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), *flags]) == 2
    assert why in capsys.readouterr().err


def test_several_gateways_say_what_they_know(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["replay", str(trace), "--policy", "affinity", "--gateways", "3", "--spread", "5"]
    assert main([*argv, "--share-delay", "0.1", "--no-events", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    said = {"gateways": 3, "share_delay_s": 0.1, "events": False, "seed": 5}
    assert said.items() <= told["gateways"].items()
    assert 0 < told["policies"]["affinity"]["hit"] < 1
    assert main(argv) == 0
    assert "3 gateways, with KV events; nothing is shared" in capsys.readouterr().out


def test_a_replay_repeats_itself(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = set()
    for _ in range(2):
        main(["replay", str(trace), "--json", "--policy", "random,affinity"])
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1

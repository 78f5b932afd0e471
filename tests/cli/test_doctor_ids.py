"""`tokenlane doctor` and the ids that replicas make."""

from pathlib import Path

from tests.faults.other_ids import Replica, changed, one_more_token
from tests.support import demo_tokenizer, replicas
from tokenlane.cli.doctor_ids import check_ids
from tokenlane.config.settings import Settings
from tokenlane.tokens.tokenizer import Tokenizer


async def said(tokenizer: Tokenizer, *, tokenizes: bool = True) -> tuple[list[str], list[str]]:
    """What is fine and what is not, with a replica that speaks this tokenizer."""
    fine: list[str] = []
    warned: list[str] = []
    async with Replica(tokenizer) as replica:
        replica.tokenizes = tokenizes
        state = replicas([replica.url])
        known = {"demo": demo_tokenizer()}
        await check_ids(Settings(), state.replicas, known, fine.append, warned.append)
    return fine, warned


async def test_a_replica_that_makes_the_same() -> None:
    fine, warned = await said(demo_tokenizer())
    assert not warned
    assert "ids of demo at http://127.0.0.1" in fine[0]
    assert ": the same, of " in fine[0]


async def test_one_that_makes_others(tmp_path: Path) -> None:
    def template(_: object, config: dict[str, str]) -> None:
        config["chat_template"] = config["chat_template"].replace("assistant", "bot")

    fine, warned = await said(changed(tmp_path / "m", template))
    assert not fine
    assert "it makes others (chat)" in warned[0]
    fine, warned = await said(changed(tmp_path / "n", one_more_token))
    assert "it makes others (completion)" in warned[0]


async def test_one_that_cannot_say() -> None:
    fine, warned = await said(demo_tokenizer(), tokenizes=False)
    assert not fine
    assert "not proven (/tokenize: status 404)" in warned[0]

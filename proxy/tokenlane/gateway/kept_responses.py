"""The responses that replicas store, as this worker knows them: which replica has one, and which
tenant owns it.

Invariants:
- Where there are tenants, a response that is not known to be the asking tenant's is not there for
  it: nothing of the answer, nor the time it takes, says whether it is another's.
- The control plane is told of each response before the client has its name, and knows what all
  workers saw made, and the other gateways. It is asked where this worker does not know.
"""

import asyncio
from collections.abc import Callable

from tokenlane.routing.response_homes import NAME_LIMIT_CHARS, ResponseHomes

DEADLINE_S = 2.0


class KeptResponses:
    """The stored responses that a worker knows. tell: sends (name, slot, tenant) to the control
    plane. ask: sends it (number, name); False where it cannot be asked, else `told` follows."""

    def __init__(
        self,
        tell: Callable[[str, int, str], object] = lambda *_: None,
        ask: Callable[[int, str], bool] = lambda *_: False,
    ) -> None:
        self.homes = ResponseHomes()
        self._tell = tell
        self._ask = ask
        self._asked: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._questions = 0

    def made(self, slot: int, tenant: str, name: str) -> None:
        """Note that a replica made a response for a request of this worker."""
        self.homes.learn(name, slot, tenant)
        if len(name) <= NAME_LIMIT_CHARS:
            self._tell(name, slot, tenant)

    def told(self, number: int, slot: int, tenant: str) -> None:
        """Take the answer to a question; slot: -1 where it is not known."""
        asked = self._asked.get(number)
        if asked is not None and not asked.done():
            asked.set_result((slot, tenant))

    async def owns(self, name: str, tenant: str) -> bool:
        """Return whether the response belongs to this tenant."""
        if self.homes.owns(name, tenant):
            return True
        if len(name) > NAME_LIMIT_CHARS:
            return False
        self._questions += 1
        number = self._questions
        if not self._ask(number, name):
            return False
        answer: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(DEADLINE_S):
                slot, whose = await answer
        except TimeoutError:
            return False
        finally:
            del self._asked[number]
        if slot >= 0:
            self.homes.learn(name, slot, whose)
        return self.homes.owns(name, tenant)

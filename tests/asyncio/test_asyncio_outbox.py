"""New requests of one turn of a loop cross together, by the handful: engines begin while the loop prepares the next."""

import asyncio

from omni_actors_asyncio._loop import AT_ONCE, Outbox


class FakeBridge:
    """What was put, and which of it was woken together."""

    def __init__(self):
        self.tickets, self.woken = [], []

    def put(self, ticket):
        self.tickets.append(ticket)

    def wake(self, tickets):
        self.woken.append(list(tickets))


def test_requests_of_one_turn_cross_by_the_handful_and_at_its_end_the_rest():
    bridge = FakeBridge()

    async def turn():
        outbox = Outbox(asyncio.get_running_loop(), bridge, lambda outbox: None)
        for number in range(20):
            outbox.ask(number)
        assert bridge.tickets == list(range(20))
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert [len(batch) for batch in bridge.woken] == [AT_ONCE, AT_ONCE, 20 - 2 * AT_ONCE]
    assert [number for batch in bridge.woken for number in batch] == list(range(20))

"""What is served next, and whom an update waits for: tables of events, and random events against a slow twin."""

import random

import numpy as np
import pytest
from transport_fakes import echo_task

from parl_like.interfaces import LearnerProgress
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.rounds import ROUND_DONE, Rounds, Serve, Wait, waits_for
from parl_like.tasks.tickets import INFINITE, Ticket
from parl_like.tasks.wrapper import ComputationWrapper

NOTHING = Wait(INFINITE)


class Player:
    """An agent for the scheduler and the twin: `state` is runs, rests, parked, ended, or the queue where it waits."""

    def __init__(self, name, learns=True):
        self.name, self.learns, self.state, self.steps, self.due = name, learns, "runs", 0, False

    def progress(self):
        return LearnerProgress(self.steps, self.due)

    def __str__(self):
        return self.name


def wrapper_of(name, predict, training):
    task = echo_task(predict_rule=predict, training_rule=training)
    task.name = name
    return ComputationWrapper(task)


class World:
    """Agents and tasks without a driver: every method is one event.

    Args:
        learners, others: Names of agents, one letter each.
        patience: Of predictions whose rule says nothing, seconds.
        rules: Task name → rule of its updates; predictions have none.
    """

    def __init__(self, learners="ab", others="", sync=True, patience=None, predict=None, **rules):
        self.rules, self.sync, self.now = rules or {"t": BatchRule()}, sync, 100.0
        self.wrappers = {name: wrapper_of(name, predict or BatchRule(), rule) for name, rule in self.rules.items()}
        self.queues = [queue for w in self.wrappers.values() for queue in (w.predictions, w.trainings)]
        self.names = {queue: f"{queue.kind} {queue.task.name}" for queue in self.queues}
        for queue in self.queues:
            queue.begin(sync, patience if queue.kind == "predict" else None)
        self.players = {name: Player(name, name in learners) for name in learners + others}
        self.rounds = Rounds()
        self.rounds.begin(sync, self.queues, [player for player in self.players.values() if player.learns], bool(learners))
        self._count()

    def _count(self):
        self.rounds.acting = sum(player.state == "runs" for player in self.players.values())
        self.rounds.resting = any(player.state == "rests" for player in self.players.values())

    def _put(self, queue, player, **of_ticket):
        ticket = Ticket(player, None, rows=of_ticket.pop("rows", 1), **of_ticket)
        rows = np.zeros((ticket.rows, 2))
        dropped = queue.put(ticket, (rows,) if queue.kind == "predict" else {"obs": rows}) or []
        queue.batches[-1].born = self.now if len(queue.batches[-1].tickets) == 1 else queue.batches[-1].born
        self._wake(dropped)
        return ticket

    def _wake(self, tickets):
        for ticket in tickets:
            player = ticket.agent
            if player.state is ticket.queue:
                player.state = "runs"
                self.rounds.running(player)

    def ask(self, names, task="t", rows=1):
        """Agents take a step and wait for a prediction."""
        for name in names:
            player, queue = self.players[name], self.wrappers[task].predictions
            self._put(queue, player, rows=rows)
            player.state, player.steps = queue, player.steps + 1
        self._count()

    def learn(self, names, task="t", scheduled=True, wait=True, rows=1):
        """Agents send an update, and wait for it."""
        for name in names:
            player, queue = self.players[name], self.wrappers[task].trainings
            steps, player.steps, player.due = max(player.steps, 1), 0, False
            if wait:
                player.state = queue
                self.rounds.waits(player)
            self._put(queue, player, rows=rows, steps=steps, scheduled=scheduled)
        self._count()

    def rest(self, names):
        for name in names:
            self.players[name].state = "rests"
        self._count()

    def rouse(self):
        for player in self.players.values():
            player.state = "runs" if player.state == "rests" else player.state
        self._count()

    def park(self, names):
        for name in names:
            self.players[name].state = "parked"
            self.rounds.parked(self.players[name])
        self._count()

    def resume(self, names):
        for name in names:
            self.players[name].state = "runs"
            self.rounds.running(self.players[name])
        self._count()

    def end(self, names):
        for name in names:
            self.players[name].state = "ended"
            self.rounds.ended(self.players[name])
        self._count()

    def due(self, names, due=True):
        """The schedules of agents have updates due."""
        for name in names:
            self.players[name].due = due

    def next(self):
        step = self.rounds.next(self.now)
        return self.names[step.queue] if isinstance(step, Serve) else step

    def serve(self):
        """Obeys once; returns what was served, or what the scheduler said."""
        step = self.rounds.next(self.now)
        if not isinstance(step, Serve):
            return step
        tickets = step.queue.serve()
        self.rounds.served(step.queue)
        self._wake(tickets)
        self._count()
        return self.names[step.queue], "".join(ticket.agent.name for ticket in tickets)


def test_whom_an_update_of_a_sync_round_waits_for():
    """Steps since its last update, and whether its own schedule has one due."""
    paces = [LearnerProgress(9, False), LearnerProgress(9, True), LearnerProgress(10, False), LearnerProgress(10, True)]
    assert [waits_for(10, False, pace) for pace in paces] == [True, True, False, False]
    assert [waits_for(10, True, pace) for pace in paces] == [True, True, False, True]


def test_an_unroll_and_a_round():
    world = World("ab")
    world.ask("ab")
    assert world.serve() == ("predict t", "ab")
    world.learn("a")
    world.ask("b")
    world.due("b")
    assert world.serve() == ("predict t", "b")  # its schedule has one due
    world.learn("b")
    assert world.serve() == ("learn t", "ab")
    assert world.serve() is ROUND_DONE
    assert world.rounds.acting == 2


def test_a_round_serves_all_tasks_before_it_is_done_and_says_the_same_when_asked_again():
    world = World("ab", t=BatchRule(max_rows=1), u=BatchRule())
    world.learn("a", "u")
    world.learn("b", "t")
    assert [world.next(), world.next()] == ["learn t"] * 2
    assert [world.serve(), world.serve(), world.serve()] == [("learn t", "b"), ("learn u", "a"), ROUND_DONE]


def test_a_round_goes_before_predictions_of_those_that_it_does_not_wait_for():
    world = World("ab", "n")
    world.ask("n")
    world.ask("b")
    world.players["b"].steps = 5
    world.players["a"].steps = 3
    world.learn("a")
    assert [world.serve(), world.serve()] == [("learn t", "a"), ROUND_DONE]


def test_who_is_behind_is_waited_for_until_it_has_taken_as_many_steps():
    """Unequal rates: one learns every 3 steps, the other, which acts, has taken 1."""
    world = World("ab")
    world.players["a"].steps = 3
    world.learn("a")
    seen = []
    for _ in range(3):
        world.ask("b")
        seen.append(world.serve())
    assert seen == [("predict t", "b"), ("predict t", "b"), ("learn t", "a")]


@pytest.mark.parametrize("scheduled, first", [(True, "predict t"), (False, "learn t")])
def test_an_update_by_hand_does_not_wait_for_schedules(scheduled, first):
    world = World("ab")
    world.players["b"].steps = 9
    world.ask("b")
    world.due("b")
    world.learn("a", scheduled=scheduled)
    assert world.next() == first


@pytest.mark.parametrize("event", ["park", "end"])
def test_nobody_waits_for_who_is_parked_or_has_ended_and_for_who_resumes_again(event):
    world = World("abc")
    world.learn("a")
    world.due("bc")
    world.ask("c")
    getattr(world, event)("b")
    assert world.serve() == ("predict t", "c")
    world.end("c")
    if event == "park":
        world.resume("b")
        world.ask("b")
        assert world.serve() == ("predict t", "b")
        world.park("b")
    assert [world.serve(), world.serve()] == [("learn t", "a"), ROUND_DONE]


def test_who_never_learns_starves_nobody_and_is_not_waited_for():
    world = World("a", "n")
    world.due("n")
    for _ in range(3):
        world.ask("n")
        world.learn("a")
        assert [world.serve(), world.serve()] == [("learn t", "a"), ROUND_DONE]
        world.ask("a")
        assert world.serve() == ("predict t", "na")


def test_a_fuller_queue_is_first_and_none_waits_for_ever():
    world = World("", "abcd", t=BatchRule(), u=BatchRule())
    world.ask("a", "u")
    served = []
    while len(served) < 9:
        world.ask("bcd", "t")
        served.append(world.serve())
        if served[-1][0] == "predict u":
            break
    assert served == [("predict t", "bcd")] * 3 + [("predict u", "a")]  # with 1, 2, 3 (a tie) and 4 times its row


def test_min_rows_close_an_update_within_the_unroll():
    world = World("abc", t=BatchRule(min_rows=2))
    world.learn("a")
    world.ask("c")
    world.rest("b")
    world.due("bc")
    assert world.serve() == ("predict t", "c")
    world.learn("b")
    world.ask("c")
    assert world.serve() == ("learn t", "ab")
    assert not world.rounds.in_round


def test_who_rests_goes_on_where_an_update_waits_for_it_and_else_the_round_begins():
    world = World("ab")
    world.rest("b")
    assert world.next() == NOTHING
    world.learn("a")
    assert world.next() == NOTHING  # b has taken fewer steps
    world.players["b"].steps = 1
    assert [world.serve(), world.serve()] == [("learn t", "a"), ROUND_DONE]


def test_a_bounded_queue_drops_for_newer_updates_and_its_sender_goes_on():
    world = World("ab", t=BatchRule(max_queued=1, when_full="drop_oldest"))
    world.learn("a")
    world.learn("b")
    assert world.players["a"].state == "runs"
    world.park("a")
    assert [world.serve(), world.serve()] == [("learn t", "b"), ROUND_DONE]


def test_async_updates_wait_for_nobody_and_predictions_for_those_who_run():
    world = World("ab", sync=False)
    world.ask("a")
    assert world.next() == NOTHING
    world.learn("b", wait=False)
    assert world.serve() == ("learn t", "b")
    world.ask("b")
    assert world.serve() == ("predict t", "ab")


def test_async_predictions_wait_as_long_as_the_patience_of_their_driver():
    world = World("ab", sync=False, patience=2.0)
    world.rounds.queues[0].closing.free_since = 0.0
    world.ask("a")
    assert world.next() == Wait(102.0)
    world.now = 102.0
    assert world.serve() == ("predict t", "a")


def test_async_min_rows_wait_only_for_learners_that_do_not_wait_for_updates():
    world = World("ab", "n", sync=False, t=BatchRule(min_rows=5))
    world.learn("a")
    world.ask("bn")
    assert world.serve() == ("predict t", "bn")
    world.ask("n")
    world.learn("b")
    assert world.serve() == ("learn t", "ab")


def test_nothing_of_a_queue_is_served_twice_at_once():
    world = World("ab", sync=False)
    world.learn("ab", wait=False)
    world.rounds.serving = {world.wrappers["t"].trainings}
    world.park("ab")
    assert world.next() == NOTHING


def test_a_round_is_done_when_its_last_update_is_served_not_given_out():
    world = World("ab")
    world.learn("ab")
    training = world.wrappers["t"].trainings
    assert world.next() == "learn t"
    training.take()
    world.rounds.serving = {training}
    assert world.next() == NOTHING and world.rounds.in_round
    world.rounds.serving = ()
    assert world.next() is ROUND_DONE and not world.rounds.in_round


def test_a_round_begins_while_those_run_that_it_does_not_wait_for():
    world = World("ab", "n")
    world.ask("n")
    world.learn("a")
    assert world.next() == NOTHING  # b has taken fewer steps, and n waits for b
    world.players["b"].steps = 1
    assert world.next() == "learn t"
    assert world.rounds.acting == 1


@pytest.mark.parametrize("sync", [True, False])
def test_an_update_waits_for_an_agent_whose_prediction_is_being_served(sync):
    world = World("ab", sync=sync, t=BatchRule(min_rows=5))
    world.ask("b")
    predictions = world.wrappers["t"].predictions
    world.learn("a")
    world.due("b")
    assert world.next() == "predict t"
    predictions.take()
    world.rounds.serving = {predictions}
    assert world.next() == NOTHING


def test_while_the_replies_of_a_round_are_held_predictions_alone_are_served():
    world = World("ab", "n")
    world.learn("ab")
    assert [world.serve(), world.serve()] == [("learn t", "ab"), ROUND_DONE]
    world.rounds.holding = True
    world.park("a")
    world.learn("b")
    assert world.next() == NOTHING
    world.ask("n")
    assert world.serve() == ("predict t", "n")
    world.rounds.holding = False
    assert world.next() == "learn t"


def test_at_a_stop_async_updates_are_served_whatever_predictions_wait():
    world = World("abc", sync=False)
    world.ask("bc")
    world.learn("a")
    assert stopped(world) == [("learn t", "a")]


def test_a_run_that_begins_anew_is_in_no_round():
    world = World("ab")
    world.learn("ab")
    assert world.next() == "learn t" and world.rounds.in_round
    world.rounds.begin(True, world.queues, world.players.values())
    assert not world.rounds.in_round


def stopped(world):
    """What is served once a stop was requested."""
    served = []
    while step := world.rounds.at_stop(world.now):
        tickets = step.queue.serve()
        world.rounds.served(step.queue)
        served.append((world.names[step.queue], "".join(ticket.agent.name for ticket in tickets)))
    return served


def all_learn(world):
    world.ask("ab")
    world.serve()
    world.learn("ab")


def one_acts_that_is_not_behind(world):
    all_learn(world)
    assert [world.serve(), world.serve()] == [("learn t", "ab"), ROUND_DONE]
    world.ask("ab")
    world.serve()
    world.ask("b")
    world.learn("a")


def one_is_behind(world):
    world.players["a"].steps = 3
    world.learn("a")
    world.ask("b")


def one_has_an_update_due(world):
    world.ask("b")
    world.due("b")
    world.learn("a")


def by_hand_beside_one_that_has_an_update_due(world):
    world.ask("b")
    world.due("b")
    world.learn("a", scheduled=False)


def one_has_parked(world):
    world.due("b")
    world.park("b")
    world.learn("a")


def nobody_has_asked_to_learn(world):
    world.ask("ab")


def in_the_middle_of_a_round(world):
    world.learn("a", "u")
    world.learn("b", "t")
    assert world.serve() == ("learn t", "b")


@pytest.mark.parametrize("events, served", [
    (all_learn, [("learn t", "ab")]),
    (one_acts_that_is_not_behind, [("learn t", "a")]),
    (one_is_behind, []),
    (one_has_an_update_due, []),
    (by_hand_beside_one_that_has_an_update_due, [("learn t", "a")]),
    (one_has_parked, [("learn t", "a")]),
    (nobody_has_asked_to_learn, []),
    (in_the_middle_of_a_round, [("learn u", "a")]),
], ids=lambda value: value.__name__ if callable(value) else "")
def test_at_a_stop_updates_are_served_up_to_where_an_agent_would_act(events, served):
    world = World("ab", t=BatchRule(), u=BatchRule())
    events(world)
    assert stopped(world) == served


def test_at_a_stop_an_update_that_its_rule_closed_goes_before_a_smaller_prediction_and_not_before_a_fuller_one():
    world = World("abcd", t=BatchRule(min_rows=2))
    world.learn("ab")
    world.ask("c")
    assert stopped(world) == [("learn t", "ab")]
    world.learn("ab")
    world.ask("cd")
    world.due("d")
    assert stopped(world) == []


@pytest.mark.parametrize("sync, learners, parked, ends", [
    (True, "ab", "", True), (True, "ab", "a", True), (True, "ab", "ab", False), (True, "", "", False), (False, "ab", "", False)])
def test_rounds_end_the_iterations_of_sync_runs_as_long_as_a_learner_is_left(sync, learners, parked, ends):
    world = World(learners, "n", sync)
    players = list(world.players.values())
    assert world.rounds.end_iterations(players, [player for player in players if player.name in parked]) is ends


class Twin:
    """The rules word for word, from the agents' states and the requests that wait; it remembers only who was passed by."""

    def __init__(self, world):
        self.world, self.passed, self.round = world, dict.fromkeys(world.queues, 1), False

    def tickets(self, queue):
        return [ticket for batch in queue.batches for ticket in batch.tickets]

    def acts(self, player):
        return player.learns and (player.state in ("runs", "rests") or getattr(player.state, "kind", "") == "predict")

    def anybody_is_waited_for(self):
        updates = [t for queue in self.world.queues if queue.kind == "learn" for t in self.tickets(queue)]
        for player in self.world.players.values():
            for update in updates:
                behind = player.steps < update.steps
                keeps_step = update.scheduled and player.due
                if self.acts(player) and (behind or keeps_step):
                    return True
        return not updates

    def could_come(self, queue):
        players = self.world.players.values()
        running = [player for player in players if player.state == "runs"]
        if queue.kind == "predict":
            return bool(running)
        if self.world.sync:
            return True
        if any(player.learns for player in players):
            return any(self.acts(player) for player in players)
        return bool(running) or any(other.batches for other in self.world.queues if other.kind == "predict")

    def closed(self, queue):
        if not queue.batches:
            return False
        rule, batch = queue.rule, queue.batches[0]
        rows = sum(ticket.rows for ticket in self.tickets(queue))
        enough = rule.min_rows is not None and rows >= rule.min_rows
        enough = enough or (queue.kind == "predict" and rule.max_rows is not None and rows >= rule.max_rows)
        enough = enough or (queue.kind == "learn" and not self.world.sync and rule.min_rows is None)
        late = rule.max_wait is not None and self.world.now >= batch.born + rule.max_wait
        return enough or late or not self.could_come(queue)

    def next(self):
        world = self.world
        updates = [queue for queue in world.queues if queue.kind == "learn" and queue.batches]
        if self.round:
            if updates:
                return updates[0]
            self.round = False
            return "done"
        closed = [queue for queue in world.queues if self.closed(queue)]
        first, most = None, 0
        for queue in closed:
            if queue.rows * self.passed[queue] > most:
                first, most = queue, queue.rows * self.passed[queue]
        begins = world.sync and updates and not self.anybody_is_waited_for()
        if first is not None and (len(closed) > 1):
            self.turn = {queue: 1 if queue is first else self.passed[queue] + 1 for queue in closed}
        else:
            self.turn = {}
        if first is not None and (first.kind == "learn" or not begins):
            return first
        running = any(player.state == "runs" for player in world.players.values())
        resting = any(player.state == "rests" for player in world.players.values())
        if first is None and (running or resting) and not begins:
            return "wait"
        if not updates:
            return "wait"
        self.round = True
        self.served()
        return updates[0]

    def served(self):
        self.passed.update(self.turn)
        self.turn = {}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", range(24))
def test_random_events_give_what_the_slow_twin_says(sync, seed):
    rng = random.Random(seed)
    rules = [BatchRule(), BatchRule(min_rows=3), BatchRule(max_rows=2), BatchRule(max_wait=1.0)]
    predict = rng.choice(rules)
    rules.append(BatchRule(min_rows=2, max_rows=4))
    learners, others = rng.choice([("abcd", "no"), ("ab", ""), ("", "no"), ("abc", "n")])
    world = World(learners, others, sync, predict=predict, **{name: rng.choice(rules) for name in "tu"[: rng.randint(1, 2)]})
    twin, tasks, seen = Twin(world), list(world.wrappers), set()
    for _ in range(200):
        world.now += rng.choice([0.0, 0.1, 0.7])
        for player in world.players.values():
            if player.state == "runs" and not world.rounds.in_round and rng.random() < 0.8:
                task = rng.choice(tasks)
                event = rng.choices(["ask", "learn", "rest", "park", "end"], [60, 20, 5, 5, 0.2])[0]
                if event == "ask":
                    world.ask(player.name, task, rng.randint(1, 2))
                elif event == "learn":
                    world.learn(player.name, task, scheduled=rng.random() < 0.5, rows=rng.randint(1, 2),
                                wait=sync or rng.random() < 0.5)
                else:
                    getattr(world, event)(player.name)
                player.due = rng.random() < 0.3 and player.learns
            elif player.state == "parked" and rng.random() < 0.3:
                world.resume(player.name)
        said, expected = world.rounds.next(world.now), twin.next()
        if isinstance(said, Serve):
            assert said.queue is expected
            assert world.rounds.next(world.now) == said
            tickets = said.queue.serve()
            world.rounds.served(said.queue)
            if not twin.round:
                twin.served()
            world._wake(tickets)
            world._count()
            assert all(queue.passed == twin.passed[queue] for queue in world.queues)
        elif said is ROUND_DONE:
            assert expected == "done"
        else:
            assert expected == "wait" and said.until > world.now
            world.rouse()
        seen.add(type(said))
    assert Serve in seen

"""A shop's clerk serves a customer, whom another model plays; the database shows whether the wish was met."""

import json
import re
import sqlite3

import rlrun

SAYS_GOODBYE = "###"
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
RULES = """You are the clerk of a shop. Answer the customer, or use the database with one of these calls:
<tool_call>{"name": "find_orders", "arguments": {"customer": "…"}}</tool_call>
<tool_call>{"name": "cancel_order", "arguments": {"order": 1}}</tool_call>
<tool_call>{"name": "change_address", "arguments": {"order": 1, "address": "…"}}</tool_call>
Only orders that are pending can be changed."""
CUSTOMER = f"""You are {{customer}}, the customer of a shop, and write to its clerk. {{wish}}
Say one short sentence at a time. When it is done or impossible, say only {SAYS_GOODBYE}."""
ORDERS = [
    (1, "Ada", "lamp", "1 Hill St", "pending"),
    (2, "Ada", "desk", "1 Hill St", "shipped"),
    (3, "Ben", "sofa", "9 Lake Rd", "pending"),
]
WISHES = [
    ("Ada", "You want to cancel the lamp.", "UPDATE orders SET state = 'cancelled' WHERE id = 1"),
    ("Ada", "You want to cancel the desk.", ""),
    ("Ben", "You want the sofa sent to 2 Park Av.", "UPDATE orders SET address = '2 Park Av' WHERE id = 3"),
]


class Shop:
    def __init__(self):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE orders (id INTEGER, customer, item, address, state)")
        self.database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", ORDERS)

    def orders(self):
        return self.database.execute("SELECT * FROM orders ORDER BY id").fetchall()

    def find_orders(self, customer):
        return self.database.execute("SELECT * FROM orders WHERE customer = ?", (customer,)).fetchall()

    def cancel_order(self, order):
        return self._change("state", "cancelled", order)

    def change_address(self, order, address):
        return self._change("address", address, order)

    def _change(self, column, value, order):
        changed = self.database.execute(
            f"UPDATE orders SET {column} = ? WHERE id = ? AND state = 'pending'", (value, order)
        )
        return "done" if changed.rowcount else "there is no such order that is pending"


@rlrun.environment
class Orders:
    def __init__(self, *, turns: int = 8):
        self.turns = turns

    def tasks(self):
        return [
            {
                "id": str(number),
                "prompt": wish,
                "label": goal,
                "metadata": {"customer": customer, "wish": wish},
            }
            for number, (customer, wish, goal) in enumerate(WISHES)
        ]

    async def reset(self, task):
        self.shop, goal, self.left = Shop(), Shop(), self.turns
        goal.database.execute(task.label)
        self.goal = goal.orders()
        self.customer = task.engine("customer")
        self.said = [{"role": "system", "content": CUSTOMER.format(**task.metadata)}]
        return [
            {"role": "system", "content": RULES},
            {"role": "user", "content": await self.customer_answers("Good morning. How can I help you?")},
        ]

    async def step(self, action):
        self.left -= 1
        if call := CALL.search(action):
            observation = self.use_database(call[1])
        else:
            observation = await self.customer_answers(action)
        done = SAYS_GOODBYE in observation or self.left == 0
        reward = float(done and self.shop.orders() == self.goal)
        return observation, reward, done, {"solved": reward, "calls": float(call is not None)}

    def use_database(self, text):
        try:
            call = json.loads(text)
            method = {"find_orders", "cancel_order", "change_address"} & {call["name"]}
            return json.dumps(getattr(self.shop, method.pop())(**call["arguments"]))
        except (ValueError, KeyError, TypeError, sqlite3.Error) as error:
            return f"{type(error).__name__}: {error}"

    async def customer_answers(self, text):
        self.said.append({"role": "user", "content": text})
        answer = await self.customer.chat(self.said, max_tokens=48)
        self.said.append({"role": "assistant", "content": answer})
        return answer

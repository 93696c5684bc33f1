// Messages by `ws`, events by `eventsource`, as docs/PUSH.md and docs/EVENTS.md show them. Prints what it has seen.
import { EventSource } from "eventsource";
import { WebSocket } from "ws";

const [url, queue] = process.argv.slice(2);
const count = 20;

function opened() {
  const socket = new WebSocket(`${url.replace("http", "ws")}/api/v1/stream`, ["openq.json"]);
  const frames = [], waiting = [];
  socket.on("message", (data, isBinary) => {
    if (isBinary) throw new Error("a binary frame of openq.json");
    frames.push(JSON.parse(data));
    waiting.shift()?.();
  });
  socket.next = async () => {
    while (!frames.length) await new Promise((resolve) => waiting.push(resolve));
    return frames.shift();
  };
  socket.say = (frame) => socket.send(JSON.stringify(frame));
  return socket;
}

async function messages(socket, wanted) {
  const found = [];
  while (found.length < wanted) {
    const frame = await socket.next();
    if (frame.op === "deliver") found.push(...frame.messages);
  }
  return found;
}

const first = opened();
console.log((await first.next()).op, first.protocol, first.extensions === "");
const texts = Array.from({ length: count }, (_, number) => `κόσμε ${number}`);
first.say({ op: "publish", id: 1, queue, messages: texts });
console.log((await first.next()).count);
first.say({ op: "subscribe", sub: 1, queue, credit: { messages: 5 } });
const held = await messages(first, 5);
const ponged = new Promise((resolve) => first.once("pong", (data) => resolve(data.toString())));
first.ping("are you there");
console.log(await ponged);
first.say({ op: "ack", id: 2, receipts: held.slice(0, 2).map((message) => message.receipt_id) });
first.terminate(); // like a process that dies

const second = opened();
await second.next(); // hello
second.say({ op: "subscribe", sub: 1, queue, credit: { messages: 100 } });
const rest = await messages(second, count - 2);
second.say({ op: "ack", id: 3, receipts: rest.map((message) => message.receipt_id) });
for (let frame = await second.next(); ; frame = await second.next()) {
  if (frame.op === "settled") { console.log(frame.count); break; }
}
console.log(rest.every((message, at) => message.payload === texts[at + 2]));
const closed = new Promise((resolve) => second.on("close", (code) => resolve(code)));
second.close(1000, "done");
console.log(await closed);

// Each event once, although the connection is lost in the middle.
const source = `${url}/api/v1/queues/${queue}/events?from=oldest&events=published&bodies=1`;
let connections = 0;
const cut = (input, init) => fetch(input, init).then((response) => {
  if (++connections > 1) return response;
  const reader = response.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const { value } = await reader.read();
      controller.enqueue(value.slice(0, 1500)); // the end of an event is missing
      await reader.cancel();
      controller.close();
    },
  });
  return new Response(body, { status: 200, headers: response.headers });
});
const events = new EventSource(source, { fetch: cut });
const seen = [];
await new Promise((resolve) => {
  events.addEventListener("published", (event) => {
    seen.push(JSON.parse(event.data).message.payload);
    if (seen.length === count) publishOneMore();
    if (seen.length === count + 1) resolve();
  });
});
events.close();
async function publishOneMore() {
  await fetch(`${url}/api/v1/queues/${queue}/messages`, { method: "POST", body: '{"payload": "last"}',
    headers: { "content-type": "application/json" } });
}
console.log(connections > 1 || "one connection", seen.slice(0, count).join() === texts.join(), seen.at(-1));
process.exit(0);

/** Every component in every state, for those who build screens. Not in the menu: /ui/components. */
import { useState } from "preact/hooks";

import { Problem } from "../api/client";
import { Badge, Button, Card, Choice, Empty, Facts, Failed, Figures, LinkButton, Loading, Notice, PageHead, Progress, Tabs, Time } from "../components/basics";
import { BodyView, HexView } from "../components/body_view";
import { Chart, Sparkline } from "../components/chart";
import { Code, CopyLine } from "../components/code";
import { openAction } from "../components/dialog";
import { CheckField, FilterBox, SelectField, TextArea, TextField } from "../components/field";
import { Json } from "../components/json";
import { DataTable } from "../components/table";
import { TimelineView } from "../components/timeline_view";
import { toast } from "../components/toast";
import { count } from "../format";
import { to } from "../router";
import "../styles/queue.css";

const HOSTILE = '<img src=x onerror="alert(1)">';
const SECOND = 1000;

export default function Components() {
  return (
    <div class="stack">
      <PageHead title="Components" crumbs="For those who build screens">
        <Button kind="primary">Primary</Button>
      </PageHead>
      <Buttons />
      <Fields />
      <States />
      <Tables />
      <Values />
    </div>
  );
}

function Buttons() {
  const [choice, setChoice] = useState<"a" | "b">("a");
  return (
    <Card title="Buttons, badges, notices">
      <div class="stack">
        <div class="row">
          <Button>Plain</Button>
          <Button kind="primary">Primary</Button>
          <Button kind="danger">Danger</Button>
          <Button kind="quiet">Quiet</Button>
          <Button disabled>Disabled</Button>
          <Button small>Small</Button>
          <LinkButton href={to([])}>Link</LinkButton>
          <Choice label="Choice" value={choice} options={[["a", "One"], ["b", "Other"]]} onChange={setChoice} />
        </div>
        <div class="row">
          <Badge>plain</Badge>
          <Badge tone="good">● good</Badge>
          <Badge tone="warn">▲ warn</Badge>
          <Badge tone="bad">✕ bad</Badge>
          <Badge tone="accent">accent</Badge>
        </div>
        <Notice>A notice.</Notice>
        <Notice tone="good">Something went well.</Notice>
        <Notice tone="warn">Something needs a look.</Notice>
        <Notice tone="bad">Something failed.</Notice>
        <div class="row">
          <Button onClick={() => toast("Done.")}>Toast</Button>
          <Button onClick={() => toast("It failed.", "bad")}>Toast of a failure</Button>
          <Button onClick={() => toast("Deleted.", "good", { title: "Undo", run: () => toast("Restored.") })}>Toast with undo</Button>
          <Button
            onClick={() =>
              openAction({ title: "An action", verb: "Do", danger: true, count: () => Promise.resolve(42), body: () => <p>It says what will happen.</p>, cli: () => "openq queue ls", request: () => ({ method: "DELETE", path: "/api/v1/queues/example" }), run: () => Promise.resolve("Nothing was done: this is an example.") })
            }
          >
            Action
          </Button>
        </div>
        <Tabs label="Example" current="one" items={[{ id: "one", title: "One", href: to(["components"]) }, { id: "two", title: "Two", href: to(["components"], { tab: "two" }) }]} />
      </div>
    </Card>
  );
}

function Fields() {
  const [text, setText] = useState("");
  const [isOn, setOn] = useState(true);
  return (
    <Card title="Fields">
      <div class="form-grid">
        <TextField label="Text" value={text} onValue={setText} placeholder="placeholder" help="Help below the field" />
        <TextField label="Wrong" value="abc" onValue={setText} wrong="A number is needed." />
        <TextField label="Disabled" value="fixed" onValue={setText} disabled />
        <SelectField label="Select" value="a" options={[["a", "First"], ["b", "Second"]]} onValue={setText} />
        <TextArea label="Area" value={text} onValue={setText} />
        <CheckField label="Check" checked={isOn} onValue={setOn} />
        <FilterBox label="Filter" value={text} onValue={setText} />
      </div>
    </Card>
  );
}

function States() {
  return (
    <div class="columns">
      <Card title="Loading" flush>
        <Loading />
      </Card>
      <Card title="Empty" flush>
        <Empty title="No message is ready">
          <p>What to do about it.</p>
        </Empty>
      </Card>
      <Card title="Failed" flush>
        <Failed problem={new Problem(500, "internal", "The server could not do it.", "Try again later.")} again={() => undefined} />
      </Card>
      <Card title="Progress">
        <Progress done={412} total={940} />
      </Card>
    </div>
  );
}

function Tables() {
  const [selected, setSelected] = useState<Set<string>>(new Set(["row 2"]));
  const rows = Array.from({ length: 5 }, (_, index) => ({ name: index === 3 ? HOSTILE : `row ${index + 1}`, value: index * 1234 }));
  const many = Array.from({ length: 10_000 }, (_, index) => ({ name: `queue-${index}`, value: index }));
  return (
    <div class="columns">
      <Card title="Table" flush>
        <DataTable
          caption="An example"
          rows={rows}
          rowKey={(row) => row.name}
          selected={selected}
          onSelect={setSelected}
          current="row 1"
          columns={[
            { id: "name", title: "Name", name: true, sort: (row) => row.name, cell: (row) => row.name },
            { id: "value", title: "Value", num: true, sort: (row) => row.value, cell: (row) => count(row.value) },
          ]}
        />
      </Card>
      <Card title="10,000 rows" flush>
        <DataTable
          caption="Many rows"
          rows={many}
          rowKey={(row) => row.name}
          columns={[
            { id: "name", title: "Name", name: true, sort: (row) => row.name, cell: (row) => row.name },
            { id: "value", title: "Value", num: true, sort: (row) => row.value, cell: (row) => count(row.value) },
          ]}
        />
      </Card>
    </div>
  );
}

function Values() {
  const [start] = useState(() => Date.now() - 60 * SECOND);
  const at = (seconds: number) => new Date(start + seconds * SECOND).toISOString();
  const times = Array.from({ length: 60 }, (_, index) => start / SECOND + index);
  return (
    <div class="stack">
      <Figures items={[{ label: "Ready", value: "1,204" }, { label: "In", value: "12", note: "/s" }, { label: "Failing", value: "3", note: "/s", tone: "bad" }]} />
      <div class="columns">
        <Card title="Chart">
          <Chart label="Example" times={times} format={count} height={140} lines={[{ title: "In", colour: "--chart-in", values: times.map((_, index) => 20 + 10 * Math.sin(index / 6)) }, { title: "Out", colour: "--chart-out", dashed: true, values: times.map((_, index) => 18 + 9 * Math.cos(index / 5)) }]} />
          <Sparkline values={[1, 3, 2, 5, 4, 8]} />
        </Card>
        <Card title="Facts">
          <Facts items={[["Sent", <Time key="t" at={start} />], ["Age", <Time key="a" at={start} ago />], ["Name", HOSTILE]]} />
        </Card>
        <Card title="JSON">
          <Json value={{ text: HOSTILE, number: 1.5, list: [1, null, true], empty: {} }} />
        </Card>
        <Card title="Code">
          <div class="stack tight">
            <CopyLine text="openq send orders hi" />
            <Code text={"several\nlines"} />
            <HexView bytes={new TextEncoder().encode("bytes as digits")} />
          </div>
        </Card>
        <Card title="Body">
          <BodyView body={{ payload: btoa('{"found": "inside base64"}') }} />
        </Card>
        <Card title="Timeline">
          <TimelineView
            steps={[
              { time: at(0), what: "published", queue: "orders", detail: "by ann" },
              { time: at(5), what: "delivered", queue: "orders", detail: "to worker-1" },
              { time: at(9), what: "nacked", queue: "orders", detail: `timeout; again at ${at(14)}`, traceback: "Traceback (most recent call last):\n  TimeoutError" },
              { time: at(20), what: "delivered", queue: "orders", detail: "to worker-2" },
              { time: at(24), what: "acked", queue: "orders", detail: "" },
            ]}
          />
        </Card>
      </div>
    </div>
  );
}

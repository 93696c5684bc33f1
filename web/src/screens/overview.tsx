/** The first screen: what goes in and out, what waits, and what needs attention. */
import { call, requestOf } from "../api/client";
import { boto3Lines, cliLine, curlLine, pikaLines, pythonLines } from "../api/lines";
import { Button, Card, Empty, Figures, Loading, Notice } from "../components/basics";
import { Code, CopyButton } from "../components/code";
import { QueueTable } from "../components/queue_table";
import { AgeChart, DepthChart, RateChart } from "../components/series_chart";
import { toast, toastProblem } from "../components/toast";
import { count, duration, rate } from "../format";
import { connected, queues, totals } from "../live";
import { useLoad } from "../load";
import { navigate, to } from "../router";
import { isAdmin, isOpen, may, session } from "../session";
import { Attention } from "./overview_attention";

export default function Overview() {
  if (connected.value === undefined) return <Loading lines={8} />;
  if (queues.value.size === 0 && connected.value) return <FirstRun />;
  return (
    <div class="stack">
      <h1 class="visually-hidden">Overview</h1>
      <Live />
      <div class="main-side">
        <div class="stack">
          <RateChart />
          <DepthChart />
          <AgeChart />
        </div>
        <Attention />
      </div>
      <QueueTable />
    </div>
  );
}

function Live() {
  const now = totals.value;
  return (
    <Figures
      items={[
        { label: "In", value: rate(now.inRate), note: "/s" },
        { label: "Out", value: rate(now.outRate), note: "/s" },
        { label: "Ready", value: count(now.ready) },
        { label: "In flight", value: count(now.inFlight) },
        { label: "Delayed", value: count(now.delayed) },
        { label: "Oldest", value: duration(now.oldestAge) },
        { label: "Failing", value: rate(now.failRate), note: "/s", tone: now.failRate > 0 ? "bad" : undefined },
      ]}
    />
  );
}

/** A server without queues: lines to copy, and a button that does the same. */
function FirstRun() {
  const loaded = useLoad((signal) => call("list_servers", {}, undefined, signal), [], 0);
  async function sendTest(): Promise<void> {
    try {
      await call("put_queue", { queue: "hello", if_absent: true }, {});
      await call("publish", { queue: "hello" }, { payload: "Hello from the dashboard" });
      toast("The message is in queue hello.");
      navigate(to(["queues", "hello", "messages"]));
    } catch (error) {
      toastProblem(error);
    }
  }
  if (!isAdmin() && !may("send")) {
    return (
      <Card>
        <Empty title="There are no queues that you may see">
          <p>An administrator can let you: {cliLine("perm", "grant", session.value?.user ?? "NAME", "--help")}</p>
        </Empty>
      </Card>
    );
  }
  const amqp = loaded.value?.servers.find((each) => each.self)?.amqp_url;
  const needsLogin = !isOpen();
  return (
    <div class="stack">
      <div class="page-head">
        <div>
          <h1>This server has no queues yet</h1>
          <p class="soft">Send a first message from here, or copy lines into your program or shell. They create queue hello where they have to.</p>
        </div>
        {may("send") && (
          <Button kind="primary" onClick={sendTest}>
            Send a test message
          </Button>
        )}
      </div>
      {needsLogin && (
        <Notice>
          The server has users. Python and the shell take a token from <code>OPENQ_TOKEN</code> (<code>openq token create NAME</code>), boto3 takes an access key (<code>openq key create NAME</code>), AMQP a name and a password.
        </Notice>
      )}
      <div class="columns wide">
        <Snippet title="Python" text={pythonLines(location.origin)} />
        <Snippet title="Shell" text={shellLines()} />
        <Snippet title="boto3 (SQS)" text={boto3Lines(location.origin, needsLogin)} />
        {amqp === "" ? (
          <Card title="pika (AMQP)">
            <p class="soft">This server serves no AMQP. It does with a port: openq serve --amqp-port 5672</p>
          </Card>
        ) : (
          <Snippet title="pika (AMQP)" text={pikaLines(amqp ?? "", location.hostname, needsLogin)} />
        )}
      </div>
    </div>
  );
}

function Snippet({ title, text }: { title: string; text: string }) {
  return (
    <Card title={title} actions={<CopyButton text={text} label={`Copy the lines for ${title}`} />}>
      <Code text={text} copyable={false} />
    </Card>
  );
}

/** Two ways, each complete: the command and curl. */
function shellLines(): string {
  const publish = requestOf("publish", { queue: "hello" }, { payload: "hi" });
  return [cliLine("send", "hello", "hi"), "", "# or without openq", curlLine(requestOf("put_queue", { queue: "hello" })), curlLine(publish)].join("\n");
}

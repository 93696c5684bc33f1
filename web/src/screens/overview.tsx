/** The first screen: what goes in and out, what waits, and what needs attention. */
import { call, requestOf } from "../api/client";
import { Button, Card, Figures, Loading } from "../components/basics";
import { CopyLine } from "../components/code";
import { QueueTable } from "../components/queue_table";
import { DepthChart, RateChart } from "../components/series_chart";
import { toast, toastProblem } from "../components/toast";
import { count, duration, rate } from "../format";
import { connected, queues, totals } from "../live";
import { navigate, to } from "../router";
import { isAdmin } from "../session";
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
          {isAdmin() && <RateChart />}
          {isAdmin() && <DepthChart />}
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
  const origin = location.origin;
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
  const publish = requestOf("publish", { queue: "hello" }, { payload: "hi" });
  return (
    <div class="stack">
      <h1>This server has no queues yet</h1>
      <p class="soft">Send a first message from here, or copy a line into your program. Every line creates queue hello where it has to.</p>
      <div class="row">
        <Button kind="primary" onClick={sendTest}>
          Send a test message
        </Button>
      </div>
      <div class="columns wide">
        <Card title="Python">
          <CopyLine text={`from openq import OpenQ\n\nqueue = OpenQ("hello", url="${origin}")\nqueue.publish("hi")`} />
        </Card>
        <Card title="boto3 (SQS)">
          <CopyLine
            text={`import boto3\n\nsqs = boto3.client("sqs", "us-east-1", endpoint_url="${origin}",\n    aws_access_key_id="any", aws_secret_access_key="any")\nurl = sqs.create_queue(QueueName="hello")["QueueUrl"]\nsqs.send_message(QueueUrl=url, MessageBody="hi")`}
          />
        </Card>
        <Card title="pika (AMQP)">
          <CopyLine
            text={`import pika\n\nchannel = pika.BlockingConnection(\n    pika.URLParameters("amqp://guest:guest@${location.hostname}:5672/")).channel()\nchannel.queue_declare("hello", durable=True)\nchannel.basic_publish("", "hello", "hi")`}
          />
        </Card>
        <Card title="Shell">
          <div class="stack tight">
            <CopyLine text={`curl -X PUT ${origin}/api/v1/queues/hello`} />
            <CopyLine text={`curl ${origin}${publish.path} --json '{"payload": "hi"}'`} />
            <CopyLine text="openq send hello hi" />
          </div>
        </Card>
      </div>
    </div>
  );
}

/** One message with its whole story, at an address that can be shared. */
import { useEffect } from "preact/hooks";

import { openReplay } from "../actions/messages";
import { openRedrive } from "../actions/redrive";
import { call, Problem } from "../api/client";
import type { MessageView, Reason, TimelineStepView } from "../api/schema";
import { Badge, Button, Card, Empty, Failed, Loading, Notice, PageHead } from "../components/basics";
import { BodyView, RawView } from "../components/body_view";
import { Code, CopyButton } from "../components/code";
import { MessageButtons, PropertiesView, StateBadge } from "../components/message_detail";
import { TimelineView } from "../components/timeline_view";
import { useLoad } from "../load";
import { targetOf, toneOf } from "../messages/timeline";
import { query, to, words } from "../router";
import { may } from "../session";
import "../styles/queue.css";

interface Story {
  /** Where it is, or was last. */
  queue: string;
  message: MessageView | undefined;
  steps: TimelineStepView[];
  why: Reason | undefined;
}

/** Undefined where it is not there; other errors are raised. */
async function quietly<T>(promise: Promise<T>): Promise<T | undefined> {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof Problem && [403, 404, 409].includes(error.status)) return undefined;
    throw error;
  }
}

/** The message, if the queue has it. A search has an answer in both cases; a look at the message would be an error. */
async function look(queue: string, id: string, signal: AbortSignal): Promise<MessageView | undefined> {
  return (await quietly(call("search", { queue }, { ids: [id], limit: 1 }, signal)))?.messages[0];
}

/** The queue that has the message, or had it last, among those that the user may peek. */
async function findQueue(id: string, signal: AbortSignal): Promise<string | undefined> {
  const { found } = await call("find_message", { id, timeline: false }, undefined, signal);
  return found[0]?.queue;
}

async function loadStory(id: string, given: string, signal: AbortSignal): Promise<Story> {
  const first = given || (await findQueue(id, signal));
  if (!first) throw new Problem(404, "message_not_found", "No queue has this message, and no history knows it.");
  const steps = (await quietly(call("show_timeline", { queue: first, id }, undefined, signal)))?.steps ?? [];
  let queue = first;
  for (const step of steps) if (step.what === "dead-lettered" || step.what === "moved" || step.what === "redriven") queue = targetOf(step.detail) || queue;
  let message = await look(queue, id, signal);
  if (!message && queue !== first) {
    message = await look(first, id, signal);
    if (message) queue = first;
  }
  const why = await quietly(call("show_why", { queue, id }, undefined, signal));
  if (!message && steps.length === 0) throw new Problem(404, "message_not_found", `Queue ${first} does not have this message, and its history does not know it.`);
  return { queue, message, steps, why };
}

export default function MessageScreen() {
  const id = words.value[1] ?? "";
  const given = query.value.get("queue") ?? "";
  const loaded = useLoad((signal) => loadStory(id, given, signal), [id, given], 3);
  useEffect(() => {
    document.title = `${id} · OpenQ`;
  }, [id]);
  const story = loaded.value;
  const last = story?.steps.at(-1);
  return (
    <>
      <PageHead
        crumbs={
          <>
            <a href={to(["queues"])}>Queues</a>
            {story && (
              <>
                {" › "}
                <a href={to(["queues", story.queue, "messages"])}>{story.queue}</a>
              </>
            )}
          </>
        }
        title={
          <>
            <span class="mono">{id || "Message"}</span> {story?.message ? <StateBadge message={story.message} /> : last && <Badge tone={toneOf(last.what)}>{last.what}</Badge>}
          </>
        }
      >
        <CopyButton text={location.href} title="Copy address" />
        {story && may("manage", story.queue) && <StoryButtons id={id} story={story} reload={loaded.reload} />}
      </PageHead>
      {story ? <StoryView id={id} story={story} reload={loaded.reload} /> : loaded.problem ? <Failed problem={loaded.problem} again={loaded.reload} /> : <Loading lines={8} />}
    </>
  );
}

function StoryButtons({ id, story, reload }: { id: string; story: Story; reload: () => void }) {
  const origin = story.steps[0]?.queue ?? story.queue;
  return (
    <>
      {story.message?.status === "dead" && (
        <Button small kind="primary" onClick={() => openRedrive({ queues: [story.queue], filter: { ids: [id] }, done: reload })}>
          Redrive…
        </Button>
      )}
      <Button small onClick={() => openReplay(origin, id, reload)}>
        Replay as a copy…
      </Button>
    </>
  );
}

function StoryView({ story, reload }: { id: string; story: Story; reload: () => void }) {
  const { message, queue, why, steps } = story;
  const failure = [...steps].reverse().find((step) => step.traceback);
  return (
    <div class="stack">
      {why && why.code !== "not_found" && <Notice>{why.text.charAt(0).toUpperCase() + why.text.slice(1)}.</Notice>}
      {!message && <Notice>The message is no longer in a queue. Its body is in the history of {steps[0]?.queue ?? queue} while that is kept.</Notice>}
      <Card title="Timeline">
        <TimelineView steps={steps} />
      </Card>
      {message ? (
        <>
          {(may("manage", queue) || may("send", queue)) && (
            <section class="card" aria-label="Actions">
              <MessageButtons queue={queue} message={message} reload={reload} />
            </section>
          )}
          <div class="main-side">
            <div class="stack">
              <Card title="Body">
                <BodyView body={message} />
              </Card>
              {message.traceback && (
                <Card title="Traceback">
                  <Code text={message.traceback} />
                </Card>
              )}
              <details>
                <summary>Raw bytes</summary>
                <RawView body={message} />
              </details>
            </div>
            <Card title="Properties">
              <PropertiesView message={message} withTraceback={false} />
            </Card>
          </div>
        </>
      ) : (
        !failure && steps.length === 0 && <Empty title="Nothing is known about it" />
      )}
    </div>
  );
}

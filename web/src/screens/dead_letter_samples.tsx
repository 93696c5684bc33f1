/** Samples of a group of dead letters side by side: what differs stands first. */
import { call } from "../api/client";
import type { GroupSample, MessageView } from "../api/schema";
import { Code } from "../components/code";
import { Show, Time } from "../components/basics";
import { differences } from "../differ";
import { oneLine } from "../format";
import { useLoad } from "../load";
import { to } from "../router";

interface Sample extends MessageView {
  queue: string;
}

async function loadSamples(wanted: GroupSample[], signal: AbortSignal): Promise<Sample[]> {
  const found = await Promise.all(
    wanted.map(async ({ queue, id }) => {
      // A search has an answer for a message that is gone meanwhile, too: it is left out.
      const { messages } = await call("search", { queue }, { ids: [id], state: "all", limit: 1 }, signal);
      return messages[0] && { ...messages[0], queue };
    }),
  );
  return found.filter((each) => each !== undefined);
}

/** Everything that may differ: the reason in full, the body, the attributes, the type, the group. */
function comparable(message: Sample): unknown {
  const found: Record<string, unknown> = { ...(message.reason ? { reason: message.reason } : {}), body: message.payload, queue: message.queue };
  if (Object.keys(message.attributes).length > 0) found.attribute = message.attributes;
  if (message.message_type) found.type = message.message_type;
  if (message.group) found.group = message.group;
  return found;
}

export function Samples({ of }: { of: GroupSample[] }) {
  const loaded = useLoad((signal) => loadSamples(of, signal), [of.map((each) => each.id)]);
  return (
    <Show of={loaded}>
      {(samples) => (
        <div class="stack">
          <div class="table-box" tabIndex={0} role="region" aria-label="Samples">
            <table class="data samples">
              <caption class="visually-hidden">Samples side by side; values that differ stand first</caption>
              <thead>
                <tr>
                  <th scope="col">Field</th>
                  {samples.map((each) => (
                    <th scope="col" key={each.id}>
                      <a href={to(["messages", each.id], { queue: each.queue })}>…{each.id.slice(-12)}</a>
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                <tr>
                  <th scope="row">dead-lettered</th>
                  {samples.map((each) => (
                    <td key={each.id}>{each.deaths?.[0] ? <Time at={each.deaths[0].time} ago /> : "–"}</td>
                  ))}
                </tr>
                {differences(samples.map(comparable)).map((row) => (
                  <tr key={row.path} class={row.isSame ? "soft" : "differs"}>
                    <th scope="row">
                      <code>{row.path}</code>
                    </th>
                    {row.values.map((value, index) => (
                      <td key={index} class={row.path === "reason" ? "whole" : "cut"} title={value}>
                        {value === undefined ? "–" : oneLine(value, 120)}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {samples.find((each) => each.traceback) && <Code text={samples.find((each) => each.traceback)!.traceback!} />}
        </div>
      )}
    </Show>
  );
}

/** Samples of a group of dead letters side by side: what differs stands first. */
import { call } from "../api/client";
import type { MessageView } from "../api/schema";
import { Code } from "../components/code";
import { Show, Time } from "../components/basics";
import { differences } from "../differ";
import { oneLine } from "../format";
import { useLoad } from "../load";
import { to } from "../router";

async function loadSamples(queue: string, ids: string[], signal: AbortSignal): Promise<MessageView[]> {
  const found = await Promise.all(
    // A message that is gone meanwhile is left out.
    ids.map((id) => call("show_message", { queue, id }, undefined, signal).catch(() => undefined)),
  );
  return found.filter((each) => each !== undefined);
}

export function Samples({ queue, ids, reason }: { queue: string; ids: string[]; reason: string }) {
  const loaded = useLoad((signal) => loadSamples(queue, ids, signal), [queue, ids]);
  return (
    <Show of={loaded}>
      {(samples) => (
        <div class="stack">
          {reason && <p class="soft">Latest wording: {oneLine(reason, 400)}</p>}
          <div class="table-box" tabIndex={0} role="region" aria-label="Samples">
            <table class="data samples">
              <caption class="visually-hidden">Samples side by side; values that differ stand first</caption>
              <thead>
                <tr>
                  <th scope="col">Field</th>
                  {samples.map((each) => (
                    <th scope="col" key={each.id}>
                      <a href={to(["messages", each.id], { queue })}>…{each.id.slice(-12)}</a>
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
                <tr>
                  <th scope="row">type</th>
                  {samples.map((each) => (
                    <td key={each.id}>{each.message_type ?? "–"}</td>
                  ))}
                </tr>
                {differences(samples.map((each) => each.payload)).map((row) => (
                  <tr key={row.path} class={row.isSame ? "soft" : "differs"}>
                    <th scope="row">
                      <code>{row.path}</code>
                    </th>
                    {row.values.map((value, index) => (
                      <td key={index} class="cut" title={value}>
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

/** Every setting with what it means; changes are shown as a difference before they are saved. */
import { useId, useState } from "preact/hooks";

import { call, requestOf } from "../api/client";
import type { SettingDescription } from "../api/schema";
import { Button, Card, Facts, Notice } from "../components/basics";
import { openAction } from "../components/dialog";
import { count, plural } from "../format";
import { changeOf, describe, differences, formOf, groups, settingsLine, titleOf, type Form } from "../queue/settings";
import { may } from "../session";
import type { TabProps } from "./queue";

export function QueueSettings(props: TabProps) {
  return <SettingsForm {...props} shown={groups().map((each) => each.id)} />;
}

export function QueueLimits(props: TabProps) {
  const { stats } = props.queue;
  return (
    <div class="stack">
      <Facts
        items={[
          ["In flight now", count(stats.in_flight)],
          ["Held back by limits", stats.limited ? plural(stats.limited, "message") : "none"],
        ]}
      />
      <SettingsForm {...props} shown={["limits"]} />
    </div>
  );
}

function SettingsForm({ queue, reload, shown }: TabProps & { shown: string[] }) {
  const [edits, setEdits] = useState<Form>({});
  const before = formOf(queue.settings);
  const after = { ...before, ...edits };
  const { changes, problems } = differences(before, after);
  const mayEdit = may("manage", queue.name);

  function save(): void {
    openAction({
      title: `Change ${plural(changes.length, "setting")} of ${queue.name}`,
      verb: "Save",
      body: () => (
        <div class="table-box">
          <table class="data">
            <caption class="visually-hidden">What changes</caption>
            <thead>
              <tr>
                <th scope="col">Setting</th>
                <th scope="col">Before</th>
                <th scope="col">After</th>
              </tr>
            </thead>
            <tbody>
              {changes.map((each) => (
                <tr key={each.name}>
                  <td class="name">{titleOf(each.name)}</td>
                  <td>{each.before || "none"}</td>
                  <td>
                    <b>{each.after || "none"}</b>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ),
      request: () => requestOf("change_queue", { queue: queue.name }, changeOf(changes)),
      cli: () => settingsLine("edit", queue.name, changes) ?? "# one of these settings has no option of the command line: use curl",
      run: async () => {
        await call("change_queue", { queue: queue.name }, changeOf(changes));
        setEdits({});
        return "Saved. The settings hold from now on.";
      },
      done: reload,
    });
  }

  return (
    <div class="stack">
      {!mayEdit && <Notice>You may look at the settings, not change them.</Notice>}
      {groups()
        .filter((group) => shown.includes(group.id))
        .map((group) => (
          <Card key={group.id} title={group.title} flush>
            <div class="settings-list">
              {group.names.map((name) => (
                <SettingRow
                  key={name}
                  setting={describe(name)}
                  value={after[name] ?? ""}
                  isChanged={changes.some((each) => each.name === name)}
                  wrong={problems[name]}
                  disabled={!mayEdit}
                  onValue={(value) => setEdits({ ...edits, [name]: value })}
                />
              ))}
            </div>
          </Card>
        ))}
      {Object.keys(edits).length > 0 && (changes.length > 0 || Object.keys(problems).length > 0) && (
        <div class="save-bar" role="status">
          <span>{Object.keys(problems).length ? `${plural(Object.keys(problems).length, "field")} cannot be read` : `${plural(changes.length, "setting")} changed`}</span>
          <span class="row">
            <Button onClick={() => setEdits({})}>Undo all</Button>
            <Button kind="primary" disabled={changes.length === 0 || Object.keys(problems).length > 0} onClick={save}>
              Review and save
            </Button>
          </span>
        </div>
      )}
    </div>
  );
}

function SettingRow(props: { setting: SettingDescription; value: string; isChanged: boolean; wrong?: string; disabled: boolean; onValue: (value: string) => void }) {
  const { setting, value } = props;
  const id = useId();
  const common = { id, disabled: props.disabled, "aria-describedby": `${id}-help`, "aria-invalid": props.wrong ? ("true" as const) : undefined };
  const choices = setting.kind === "flag" ? ["false", "true"] : setting.kind === "choice" ? setting.choices : undefined;
  return (
    <div class={props.isChanged || props.wrong ? "changed" : undefined}>
      <label for={id}>{titleOf(setting.name)}</label>
      {choices ? (
        <select {...common} class="select" value={value} onChange={(event) => props.onValue(event.currentTarget.value)}>
          {choices.map((each) => (
            <option key={each} value={each}>
              {each === "true" ? "yes" : each === "false" ? "no" : each}
            </option>
          ))}
        </select>
      ) : (
        <input {...common} class="input" value={value} placeholder={setting.optional || setting.kind === "key_limits" ? "none" : undefined} onInput={(event) => props.onValue(event.currentTarget.value)} />
      )}
      <div id={`${id}-help`}>
        {props.wrong && <p class="bad">{props.wrong}</p>}
        <p class="soft">{setting.help}</p>
      </div>
    </div>
  );
}

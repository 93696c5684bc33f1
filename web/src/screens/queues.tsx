/** The list of queues, and one queue with its tabs. */
import { Button, Empty, Loading, PageHead } from "../components/basics";
import { QueueTable } from "../components/queue_table";
import { openCreate } from "../actions/queues";
import { connected, queues } from "../live";
import { words } from "../router";
import { may } from "../session";
import { Queue } from "./queue";

export default function Queues() {
  const [, name, tab] = words.value;
  if (name !== undefined) return <Queue key={name} name={name} tab={tab ?? "overview"} />;
  return (
    <>
      <PageHead title="Queues">
        {may("manage") && (
          <Button kind="primary" onClick={openCreate}>
            Create queue
          </Button>
        )}
      </PageHead>
      <QueueTable
        actions={may("manage")}
        empty={
          queues.value.size > 0 ? undefined : connected.value === undefined ? (
            <Loading lines={4} />
          ) : (
            <Empty title="No queues yet">
              <p>Programs create queues by themselves, or you create one here.</p>
            </Empty>
          )
        }
      />
    </>
  );
}

import { PageHead } from "../components/basics";
import { QueueTable } from "../components/queue_table";

export default function Queues() {
  return (
    <>
      <PageHead title="Queues" />
      <QueueTable />
    </>
  );
}

import { PageHead } from "../components/basics";
import { TaskList } from "../components/task_list";

export default function Tasks() {
  return (
    <>
      <PageHead title="Operations" />
      <TaskList always />
    </>
  );
}

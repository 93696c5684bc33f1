/** Says that the values on the page are old, and when the page tries again. */
import { Button, useSeconds } from "./components/basics";
import { feed, retryNow } from "./live";

export function FeedBanner() {
  const now = feed.value;
  const isOld = now.is === "lost" || now.is === "silent";
  useSeconds(isOld ? 1 : 0);
  if (now.is === "silent") {
    return (
      <div class="banner" role="status">
        No new values for {Math.round((Date.now() - now.since) / 1000)} s: the server is busy, or its store does not answer.
      </div>
    );
  }
  if (now.is !== "lost") return null;
  const left = Math.ceil((now.next - Date.now()) / 1000);
  return (
    <div class="banner row between" role="status">
      <span>
        {now.problem.status === 0 ? "The server cannot be reached." : now.problem.message} Values are from before. {left > 0 ? `Next attempt in ${left} s.` : "Trying now…"}
      </span>
      <Button small onClick={retryNow}>
        Try now
      </Button>
    </div>
  );
}

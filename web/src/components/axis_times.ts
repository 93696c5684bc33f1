/** Times of an axis in the 24-hour clock; the date stands where a day begins, seconds only where they differ. */
export function axisTimes(times: number[]): string[] {
  const step = (times[1] ?? 0) - (times[0] ?? 0);
  const hasSeconds = times.some((time) => time % 60 !== 0);
  let day = "";
  return times.map((time) => {
    const date = new Date(time * 1000);
    const text = date.toLocaleTimeString(undefined, { hour12: false, hour: "2-digit", minute: "2-digit", second: hasSeconds ? "2-digit" : undefined });
    const today = date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
    if (step >= 86_400) return today;
    const isNew = day !== "" && today !== day;
    day = today;
    return isNew ? `${text}\n${today}` : text;
  });
}

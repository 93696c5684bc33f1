/** A table of days and hours whose cells are as dark as their numbers. It is a real table: the numbers are in it. */
import { count } from "../format";
import type { HourCell } from "../pipeline/results";

const HOURS = Array.from({ length: 24 }, (_, hour) => hour);

export function HeatMap({ label, cells }: { label: string; cells: HourCell[] }) {
  const days = [...new Set(cells.map((cell) => cell.day))];
  // One hour is a number, not a pattern.
  if (cells.length < 2) return null;
  const top = Math.max(1, ...cells.map((cell) => cell.value));
  const found = new Map(cells.map((cell) => [`${cell.day} ${cell.hour}`, cell.value]));
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label={label}>
      <table class="heat">
        <caption class="soft">{label}</caption>
        <thead>
          <tr>
            <td />
            {HOURS.map((hour) => (
              <th scope="col" key={hour}>
                {hour % 3 === 0 ? hour : <span class="visually-hidden">{hour}</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {days.map((day) => (
            <tr key={day}>
              <th scope="row">{new Date(day * 1000).toLocaleDateString(undefined, { weekday: "short", month: "short", day: "numeric" })}</th>
              {HOURS.map((hour) => {
                const value = found.get(`${day} ${hour}`);
                return (
                  <td key={hour} title={value === undefined ? undefined : `${count(value)} from ${hour}:00`} style={value ? { "--share": `${Math.round(15 + (value / top) * 85)}%` } : undefined} class={value ? "some" : undefined}>
                    <span class="visually-hidden">{value === undefined ? "–" : count(value)}</span>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

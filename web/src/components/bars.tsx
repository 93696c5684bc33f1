/** Small columns for a table cell, one for each part of a span. The label says the numbers in words. */
export function Bars({ values, label }: { values: readonly number[]; label: string }) {
  const top = Math.max(...values, 1);
  const step = 96 / Math.max(values.length, 1);
  return (
    <svg class="spark bars" viewBox="0 0 96 22" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      <path class="base" d="M0 21.5H96" />
      {values.map((value, index) => value > 0 && <rect key={index} x={(index * step + 0.4).toFixed(1)} y={(21 - Math.max(2, (value / top) * 20)).toFixed(1)} width={(step - 0.8).toFixed(1)} height={Math.max(2, (value / top) * 20).toFixed(1)} />)}
    </svg>
  );
}

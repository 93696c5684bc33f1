/** Which messages of the table are selected, as an address holds it: their ids, up to a number of them. */

/** An address of 50 ids is some two thousand characters long, which every browser and chat takes. */
export const MAX_IN_ADDRESS = 50;
/** Ids that were chosen by their senders may be long. */
const MAX_CHARACTERS = 4000;

/** The value of the parameter; undefined: none are selected, or too many for an address. */
export function writeSelection(ids: string[]): string | undefined {
  if (ids.length === 0 || ids.length > MAX_IN_ADDRESS) return undefined;
  const text = ids.map(encodeURIComponent).join(",");
  return text.length > MAX_CHARACTERS ? undefined : text;
}

export function readSelection(text: string | null): string[] {
  if (!text || text.length > MAX_CHARACTERS) return [];
  const ids = text.split(",").filter(Boolean).map(decoded);
  return [...new Set(ids)].slice(0, MAX_IN_ADDRESS);
}

function decoded(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

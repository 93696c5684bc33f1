/** The search field for messages, with its syntax and what it did not understand. */
import { useEffect, useState } from "preact/hooks";

import { Button } from "../components/basics";

export function SearchBox({ text, problems, onSearch }: { text: string; problems: string[]; onSearch: (text: string) => void }) {
  const [typed, setTyped] = useState(text);
  useEffect(() => setTyped(text), [text]);
  return (
    <form
      class="grow"
      role="search"
      aria-label="Messages"
      onSubmit={(event) => {
        event.preventDefault();
        onSearch(typed.trim());
      }}
    >
      <div class="row unwrapped">
        <input
          class="input"
          type="search"
          aria-label="Search messages"
          aria-describedby="search-syntax"
          aria-invalid={problems.length ? "true" : undefined}
          placeholder="text, colour:red, body.total=12, age>10m"
          value={typed}
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            // The cross of the field empties it.
            if (event.currentTarget.value === "" && text) onSearch("");
          }}
        />
        <Button type="submit">Search</Button>
      </div>
      {problems.map((problem) => (
        <p key={problem} class="bad" role="alert">
          {problem}
        </p>
      ))}
      <p id="search-syntax" class="visually-hidden">
        Words are text in the body. name:value is an attribute, body.path=value a JSON value, type:, reason:, id: and state: are fields, age&gt;10m and deliveries&gt;=3 compare.
      </p>
    </form>
  );
}

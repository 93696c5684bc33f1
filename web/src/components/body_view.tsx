/** The body of a message: decoded by itself, with a choice, and as hexadecimal digits. */
import { useEffect, useState } from "preact/hooks";

import { bytes as sizeText } from "../format";
import { bytesOf, decode, DECODINGS, hexDump, isDecoding, type Decoded, type Decoding, type ShownBody } from "../messages/decode";
import { Loading, Notice } from "./basics";
import { Code, CopyButton } from "./code";
import { Json } from "./json";

const HEX_SHOWN = 64 * 1024;
const TEXT_SHOWN = 200_000;

export function BodyView({ body }: { body: ShownBody }) {
  const [how, setHow] = useState<Decoding>("auto");
  const [decoded, setDecoded] = useState<Decoded>();
  useEffect(() => {
    let isCurrent = true;
    void decode(body, how).then((value) => isCurrent && setDecoded(value));
    return () => {
      isCurrent = false;
    };
  }, [body, how]);
  return (
    <div class="stack tight">
      <div class="row between">
        <label class="check">
          <span class="soft">Decode</span>
          <select class="select" value={how} onChange={(event) => isDecoding(event.currentTarget.value) && setHow(event.currentTarget.value)}>
            {DECODINGS.map(([id, title]) => (
              <option key={id} value={id}>
                {title}
              </option>
            ))}
          </select>
        </label>
        {decoded && <span class="soft">{decoded.layers.join(" › ")}</span>}
      </div>
      {decoded ? <DecodedView decoded={decoded} /> : <Loading lines={3} />}
    </div>
  );
}

function DecodedView({ decoded }: { decoded: Decoded }) {
  if (decoded.kind === "failed") return <Notice tone="warn">It cannot be decoded like this: {decoded.problem}</Notice>;
  if (decoded.kind === "bytes") return <HexView bytes={decoded.bytes} />;
  if (decoded.kind === "text") return <LongText text={decoded.text} />;
  return (
    <div class="code">
      <div class="json pane">
        <Json value={decoded.value} />
      </div>
      <CopyButton text={JSON.stringify(decoded.value, null, 2)} />
    </div>
  );
}

function LongText({ text }: { text: string }) {
  if (text === "") return <p class="soft">The body is empty.</p>;
  return (
    <>
      <Code text={text.length > TEXT_SHOWN ? text.slice(0, TEXT_SHOWN) : text} />
      {text.length > TEXT_SHOWN && <p class="soft">The first {TEXT_SHOWN.toLocaleString()} of {text.length.toLocaleString()} characters.</p>}
    </>
  );
}

export function HexView({ bytes }: { bytes: Uint8Array }) {
  return (
    <>
      <div class="code">
        <pre class="hex" tabIndex={0}>
          {bytes.length ? hexDump(bytes, HEX_SHOWN) : "(no bytes)"}
        </pre>
      </div>
      {bytes.length > HEX_SHOWN && (
        <p class="soft">
          The first {sizeText(HEX_SHOWN)} of {sizeText(bytes.length)}.
        </p>
      )}
    </>
  );
}

export function RawView({ body }: { body: ShownBody }) {
  const isJson = !body.payload_encoding && (typeof body.payload !== "string" || body.payload_form === "json");
  const raw = bytesOf(body);
  return (
    <div class="stack tight">
      <p class="soft">
        {sizeText(raw.length)}
        {isJson && ", the JSON value written without spaces"}
      </p>
      <HexView bytes={raw} />
    </div>
  );
}

import { describe, expect, it } from "vitest";

import { bytesOf, decode, fromBase64, gunzip, hexDump, preview, toBase64, utf8 } from "./decode";
import { decodeMsgpack, NotMsgpack } from "./msgpack";

const bytes = (...values: number[]) => new Uint8Array(values);
const binary = (data: Uint8Array) => ({ payload: toBase64(data), payload_encoding: "base64" });

async function gzip(text: string): Promise<Uint8Array> {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

describe("decodeMsgpack", () => {
  it("reads every kind of value", () => {
    expect(decodeMsgpack(bytes(0x82, 0xa1, 0x61, 0x01, 0xa1, 0x62, 0x93, 0xc0, 0xc3, 0xff))).toEqual({ a: 1, b: [null, true, -1] });
    expect(decodeMsgpack(bytes(0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0))).toBe(1.5);
    expect(decodeMsgpack(bytes(0xcd, 0x01, 0x00))).toBe(256);
    expect(decodeMsgpack(bytes(0xd1, 0xff, 0x00))).toBe(-256);
    expect(decodeMsgpack(bytes(0xc4, 0x02, 0xde, 0xad))).toBe("0xdead");
    expect(decodeMsgpack(bytes(0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))).toBe("18446744073709551615");
    expect(decodeMsgpack(bytes(0xd4, 0x05, 0x01))).toEqual({ "msgpack extension": 5, bytes: "0x01" });
  });
  it("refuses what is cut, too long or no msgpack", () => {
    for (const wrong of [bytes(0x92, 0x01), bytes(0x01, 0x02), bytes(0xc1), bytes(), bytes(0xdd, 0xff, 0xff, 0xff, 0xff)]) {
      expect(() => decodeMsgpack(wrong)).toThrow(NotMsgpack);
    }
    expect(() => decodeMsgpack(new Uint8Array(300).fill(0x91))).toThrow(NotMsgpack);
  });
  it("does not take __proto__ for more than a key", () => {
    const map = decodeMsgpack(bytes(0x81, 0xa9, 0x5f, 0x5f, 0x70, 0x72, 0x6f, 0x74, 0x6f, 0x5f, 0x5f, 0x01));
    expect(Object.keys(map as object)).toEqual(["__proto__"]);
  });
});

describe("decode", () => {
  it("keeps what the API has parsed", async () => {
    expect(await decode({ payload: { a: 1 } }, "auto")).toEqual({ kind: "json", value: { a: 1 }, layers: ["JSON"] });
    expect(await decode({ payload: "hi" }, "auto")).toEqual({ kind: "text", text: "hi", layers: ["text"] });
  });
  it("finds JSON in text, base64 and gzip, in any order", async () => {
    const packed = await gzip('{"a":[1,2,3]}');
    const value = { a: [1, 2, 3] };
    expect(await decode({ payload: '{"a":[1,2,3]}' }, "auto")).toMatchObject({ kind: "json", value });
    expect(await decode(binary(packed), "auto")).toMatchObject({ value, layers: ["gzip", "JSON"] });
    expect(await decode({ payload: toBase64(packed) }, "auto")).toMatchObject({ value, layers: ["base64", "gzip", "JSON"] });
    expect(await decode({ payload: btoa('{"a":[1,2,3]}') }, "auto")).toMatchObject({ value, layers: ["base64", "JSON"] });
  });
  it("does not take words for base64", async () => {
    expect(await decode({ payload: "thisisaverylongword1" }, "auto")).toMatchObject({ kind: "text" });
  });
  it("finds msgpack in bytes, and shows other bytes as they are", async () => {
    expect(await decode(binary(bytes(0x81, 0xa1, 0x61, 0xff)), "auto")).toMatchObject({ kind: "json", value: { a: -1 } });
    expect(await decode(binary(bytes(0xff, 0x00, 0x01)), "auto")).toMatchObject({ kind: "bytes" });
  });
  it("never reads a pickle", async () => {
    // cos\nsystem\n(S'id'\ntR.
    expect(await decode({ payload: "cos\nsystem\n(S'id'\ntR." }, "auto")).toMatchObject({ kind: "text" });
    expect(await decode(binary(bytes(0x80, 0x04, 0x95, 0x01, 0x2e)), "auto")).toMatchObject({ kind: "bytes" });
  });
  it("says why a chosen decoding fails", async () => {
    expect(await decode({ payload: "no json" }, "json")).toMatchObject({ kind: "failed" });
    expect(await decode({ payload: "no gzip" }, "gzip")).toMatchObject({ kind: "failed" });
  });
});

it("stops unpacking at a limit", async () => {
  const packed = await gzip("0".repeat(100_000));
  await expect(gunzip(packed, 1000)).rejects.toThrow("more than");
});

it("knows text from bytes", () => {
  expect(utf8(new TextEncoder().encode("grüße\n"))).toBe("grüße\n");
  expect(utf8(bytes(0xff, 0xfe))).toBeUndefined();
  expect(utf8(bytes(0x61, 0x00))).toBeUndefined();
});

it("prints bytes as hexdump does", () => {
  expect(hexDump(new TextEncoder().encode("0123456789abcdefX"))).toBe(
    "00000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  |0123456789abcdef|\n" + "00000010  58                                                |X|",
  );
});

it("makes one line of a body", () => {
  expect(preview({ payload: { a: 1 } })).toBe('{"a":1}');
  expect(preview(binary(bytes(0xff, 0x01)))).toBe("ff 01 …");
  expect(preview({ payload: "x".repeat(1000) })).toHaveLength(240);
});

it("has the bytes of every kind of body", () => {
  expect([...bytesOf({ payload: "hi" })]).toEqual([0x68, 0x69]);
  expect([...bytesOf(binary(bytes(1, 2)))]).toEqual([1, 2]);
  expect(new TextDecoder().decode(bytesOf({ payload: "hi", payload_form: "json" }))).toBe('"hi"');
  expect([...fromBase64("-_8")]).toEqual([0xfb, 0xff]);
});

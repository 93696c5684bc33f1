/** Reads msgpack. Extension types are shown as their bytes; nothing of a body is ever run. */

export class NotMsgpack extends Error {}

const MAX_DEPTH = 200;

/** The value of the whole of `bytes`; raises NotMsgpack for anything else. */
export function decodeMsgpack(bytes: Uint8Array): unknown {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.at !== bytes.length) throw new NotMsgpack("bytes follow the value");
  return value;
}

class Reader {
  at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  private take(size: number): number {
    const start = this.at;
    if (size > this.bytes.length - start) throw new NotMsgpack("it ends in the middle of a value");
    this.at += size;
    return start;
  }

  private uint(size: 1 | 2 | 4): number {
    const at = this.take(size);
    return size === 1 ? this.view.getUint8(at) : size === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  private text(size: number): string {
    const at = this.take(size);
    return new TextDecoder("utf-8").decode(this.bytes.subarray(at, at + size));
  }

  /** Bytes as hexadecimal digits: what a tree of values can show. */
  private binary(size: number): string {
    const at = this.take(size);
    return `0x${[...this.bytes.subarray(at, at + size)].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
  }

  private extension(size: number): unknown {
    const kind = this.view.getInt8(this.take(1));
    return { "msgpack extension": kind, bytes: this.binary(size) };
  }

  private list(size: number, depth: number): unknown[] {
    const list: unknown[] = [];
    for (let index = 0; index < size; index += 1) list.push(this.value(depth + 1));
    return list;
  }

  private map(size: number, depth: number): Record<string, unknown> {
    const map: Record<string, unknown> = Object.create(null) as Record<string, unknown>;
    for (let index = 0; index < size; index += 1) {
      const key = this.value(depth + 1);
      map[typeof key === "string" ? key : (JSON.stringify(key) ?? String(key))] = this.value(depth + 1);
    }
    return map;
  }

  value(depth: number): unknown {
    if (depth > MAX_DEPTH) throw new NotMsgpack("it is nested too deeply");
    const head = this.uint(1);
    if (head < 0x80) return head;
    if (head < 0x90) return this.map(head & 0x0f, depth);
    if (head < 0xa0) return this.list(head & 0x0f, depth);
    if (head < 0xc0) return this.text(head & 0x1f);
    if (head >= 0xe0) return head - 256;
    return this.long(head, depth);
  }

  private long(head: number, depth: number): unknown {
    switch (head) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.binary(this.uint(width(head - 0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return this.extension(this.uint(width(head - 0xc7)));
      case 0xca:
        return this.view.getFloat32(this.take(4));
      case 0xcb:
        return this.view.getFloat64(this.take(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.uint(width(head - 0xcc));
      case 0xcf:
        return exact(this.view.getBigUint64(this.take(8)));
      case 0xd0:
        return this.view.getInt8(this.take(1));
      case 0xd1:
        return this.view.getInt16(this.take(2));
      case 0xd2:
        return this.view.getInt32(this.take(4));
      case 0xd3:
        return exact(this.view.getBigInt64(this.take(8)));
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return this.extension(1 << (head - 0xd4));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.uint(width(head - 0xd9)));
      case 0xdc:
        return this.list(this.uint(2), depth);
      case 0xdd:
        return this.list(this.uint(4), depth);
      case 0xde:
        return this.map(this.uint(2), depth);
      case 0xdf:
        return this.map(this.uint(4), depth);
      default:
        throw new NotMsgpack(`0x${head.toString(16)} begins no value`);
    }
  }
}

function width(step: number): 1 | 2 | 4 {
  return step === 0 ? 1 : step === 1 ? 2 : 4;
}

/** Large numbers stay exact, as text. */
function exact(value: bigint): number | string {
  return value >= BigInt(Number.MIN_SAFE_INTEGER) && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value.toString();
}

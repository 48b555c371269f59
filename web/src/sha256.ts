// SHA-256 of files of any size (FIPS 180-4). The browser's own digests a whole buffer only, and only over TLS.

const primes: number[] = [];
for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
const fraction = (x: number) => ((x - Math.floor(x)) * 2 ** 32) | 0;
const K = Int32Array.from(primes, (p) => fraction(Math.cbrt(p)));
const start = Int32Array.from(primes.slice(0, 8), (p) => fraction(Math.sqrt(p)));

/** Adds one block, 64 bytes of v from offset on, to the state h. */
function block(h: Int32Array, w: Int32Array, v: DataView, offset: number): void {
  for (let i = 0; i < 16; i++) w[i] = v.getInt32(offset + 4 * i);
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15]!;
    const y = w[i - 2]!;
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
  }
  // Plain assignments: a list of values for each of 64 rounds makes it ten times as slow.
  let a = h[0]!;
  let b = h[1]!;
  let c = h[2]!;
  let d = h[3]!;
  let e = h[4]!;
  let f = h[5]!;
  let g = h[6]!;
  let z = h[7]!;
  for (let i = 0; i < 64; i++) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (z + s1 + ((e & f) ^ (~e & g)) + K[i]! + w[i]!) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    z = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  h[0]! += a;
  h[1]! += b;
  h[2]! += c;
  h[3]! += d;
  h[4]! += e;
  h[5]! += f;
  h[6]! += g;
  h[7]! += z;
}

/** Bytes that are digested at once: the page stays usable in between. */
const piece = 4 << 20;

/** Returns the SHA-256 of a file in hex digits; note hears how many bytes were read. */
export async function sha256(file: Blob, note: (done: number) => void = () => undefined): Promise<string> {
  const h = start.slice();
  const w = new Int32Array(64);
  for (let at = 0; ; at += piece) {
    let bytes = new Uint8Array(await file.slice(at, at + piece).arrayBuffer());
    const last = at + piece > file.size;
    if (last) {
      // A one, zeros, and the length in bits fill the last block.
      const padded = new Uint8Array((bytes.length + 9 + 63) & ~63);
      padded.set(bytes);
      padded[bytes.length] = 0x80;
      new DataView(padded.buffer).setBigUint64(padded.length - 8, BigInt(file.size) * 8n);
      bytes = padded;
    }
    const v = new DataView(bytes.buffer);
    for (let i = 0; i < bytes.length; i += 64) block(h, w, v, i);
    note(Math.min(at + piece, file.size));
    if (last) return [...h].map((x) => (x >>> 0).toString(16).padStart(8, "0")).join("");
  }
}

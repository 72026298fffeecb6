/** All guarantees against the pool while one of them moves. Mirrors `Guarantees` of gateway/console/limits_form.py. */

export interface Guarantees {
  others: number; // bytes guaranteed to all others
  before: number; // all guarantees as they are in force
  room: number; // the pool up to its low watermark
  pool: number;
}

export interface Sum {
  after: number; // all guarantees with the one that moves
  fits: boolean;
  keptPart: number; // what is left of each guarantee: 1 while all fit the room
  others: number; // where the parts of the bar lie, in per cent, as the next three
  own: number;
  roomAt: number;
  poolAt: number;
}

export function sumWith(own: number, { others, before, room, pool }: Guarantees): Sum {
  const after = others + own;
  const scale = Math.max(pool, after, 1);
  const per = (amount: number): number => Math.round((amount / scale) * 10_000) / 100;
  return {
    after,
    fits: pool === 0 || after <= room || after <= before,
    keptPart: pool > 0 && after > room ? room / after : 1,
    others: per(others),
    own: per(own),
    roomAt: per(room),
    poolAt: per(pool),
  };
}

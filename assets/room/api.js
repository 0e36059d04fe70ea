// @ts-check
// The client of a room's routes (ram_studio/app/room/routes.py): JSON requests and responses, refusals as errors with
// their status, and polling with ETag. Secrets are sent in headers only.

const EVERY = 2000; // ms between two polls, plus or minus a quarter, so that a class does not poll in step
const SLOWEST = 16000;

/** A refused request. status: of HTTP, 0 without a response. */
export class Refused extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @param {string} path below room/api @param {{ body?: any, headers?: Record<string, string> }} [how] */
const ask = async (path, { body, headers } = {}) => {
  try {
    return await fetch(`room/api${path}`, {
      method: body === undefined ? "GET" : "POST",
      cache: "no-store",
      headers: { ...headers, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused("No connection to the room. Trying again.", 0);
  }
};

/** @param {Response} answer */
const refusalOf = async (answer) => {
  const body = await answer.json().catch(() => null);
  return new Refused(body?.error ?? `The server answered ${answer.status}.`, answer.status);
};

/** A route's response. Throws Refused. @param {string} path @param {{ body?: any, headers?: Record<string, string> }} [how] */
const accepted = async (path, how) => {
  const answer = await ask(path, how);
  if (!answer.ok) throw await refusalOf(answer);
  return answer;
};

/** A route's response as JSON. Throws Refused. @param {string} path @param {{ body?: any, headers?: Record<string, string> }} [how] */
export const call = async (path, how) => (await accepted(path, how)).json();

/** A route's response as text. Throws Refused. @param {string} path @param {Record<string, string>} headers */
export const textOf = async (path, headers) => (await accepted(path, { headers })).text();

/**
 * Poll a route until stopped. take(state) is called after a change, lost(refusal) after a failure: 403 and 404 end
 * polling. Returns { now, take, stop, left }: poll immediately, show a response from elsewhere, end, and the seconds
 * until a time of the server's clock.
 * @param {{ path: string, headers: Record<string, string>, take: (state: any) => void, lost: (refusal: Refused) => void }} how
 */
export const follow = ({ path, headers, take, lost }) => {
  let [etag, ahead, wait, timer, isOver, turn] = ["", 0, EVERY, 0, false, 0];
  const later = () => {
    if (!isOver) timer = window.setTimeout(poll, wait * (0.75 + Math.random() / 2));
  };
  const poll = async () => {
    clearTimeout(timer);
    turn += 1;
    const mine = turn;
    try {
      const answer = await ask(path, { headers: { ...headers, ...(etag ? { "If-None-Match": etag } : {}) } });
      const refused = answer.ok || answer.status === 304 ? null : await refusalOf(answer);
      const state = answer.ok ? await answer.json() : null;
      if (isOver || mine !== turn) return; // an outdated response
      wait = EVERY;
      if (refused) throw refused;
      ahead = Number(answer.headers.get("Room-Clock")) - performance.now() / 1000;
      if (answer.ok) {
        etag = answer.headers.get("ETag") ?? "";
        take(state);
      } else lost(new Refused("", 304));
    } catch (error) {
      const refusal = /** @type {Refused} */ (error);
      if (!(refusal instanceof Refused)) throw error;
      if (isOver || mine !== turn) return;
      isOver = [403, 404].includes(refusal.status);
      wait = Math.min(SLOWEST, 2 * wait);
      lost(refusal);
    }
    later();
  };
  poll();
  return {
    now: poll,
    /** @param {any} state */
    take: (state) => {
      turn += 1; // a pending response is older
      take(state);
      clearTimeout(timer);
      later();
    },
    stop: () => {
      isOver = true;
      clearTimeout(timer);
    },
    /** @param {number} endsAt */
    left: (endsAt) => endsAt - ahead - performance.now() / 1000,
  };
};

// @ts-check
// The room that this browser leads, so that Tune can ask its class. Kept until the room ends, two hours at most.
const KEY = "ram-room";
const LIFE = 2 * 3600 * 1000;

/** @returns {{ code: string, token: string, until: number } | null} */
export const heldRoom = () => {
  try {
    const room = JSON.parse(localStorage.getItem(KEY) ?? "null");
    return room && room.until > Date.now() ? room : null;
  } catch {
    return null; // storage refused, or not ours
  }
};

/** @param {string} code @param {string} token */
export const holdRoom = (code, token) => {
  if (heldRoom()?.code === code) return;
  try { localStorage.setItem(KEY, JSON.stringify({ code, token, until: Date.now() + LIFE })); } catch { /* private window */ }
};

export const leaveRoom = () => {
  try { localStorage.removeItem(KEY); } catch { /* private window */ }
};

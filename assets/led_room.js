// @ts-check
// The room that this browser leads, so that Tune can ask its class. Stored until the room ends, two hours at most.
import { browserMemory } from "./storage.js";

const KEY = "room";
const LIFE = 2 * 3600 * 1000;

/** @returns {{ code: string, token: string, until: number } | null} */
export const ledRoom = () => {
  const room = browserMemory.readJson(KEY);
  return room?.until > Date.now() ? room : null;
};

/** @param {string} code @param {string} token */
export const leadRoom = (code, token) => {
  if (ledRoom()?.code === code) return;
  browserMemory.write(KEY, JSON.stringify({ code, token, until: Date.now() + LIFE }));
};

export const leaveRoom = () => browserMemory.forget(KEY);

// @ts-check
// A rehearsal: simulated students in the teacher's tab, who join, poll and vote over the same routes. Their answers are
// random and not those of a class.
import { tabMemory } from "../storage.js";
import { call, Refused } from "./api.js";

export const CLASS = 30;
const RIGHT = { first: 0.5, second: 0.7 }; // share of right answers
const SLOWEST = 5000; // ms until the last one has answered
const EVERY = 6000; // ms between polls of one student, often enough to count as present

const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

/** An answer that is near the measured value with this chance, else anywhere. @param {any} question @param {any} truth @param {number} chance */
const drawnAnswer = ({ choices, line }, truth, chance) => {
  const isRight = Math.random() < chance;
  if (choices) return isRight ? truth.value : Math.floor(Math.random() * choices.length);
  const span = line.high - line.low;
  const value = isRight ? truth.value + 0.04 * span * normal() : line.low + span * Math.random();
  return Math.min(line.high, Math.max(line.low, Math.round(value)));
};

/** Let simulated students into a room, the same ones after a reload; returns a listener for the teacher's states. @param {string} code */
export const rehearse = (code) => {
  /** @type {string[]} */
  const students = [];
  const key = `rehearsal-${code}`;
  let [voted, votes] = ["", /** @type {number[]} */ ([])];
  const quietly = async (work) => {
    try { await work(); } catch (error) { if (!(error instanceof Refused)) throw error; }
  };
  const live = async (student) => {
    try {
      await call(`/${code}`, { headers: { "Room-Student": student } });
    } catch (error) {
      if (/** @type {Refused} */ (error).status === 404) return; // the room has ended
    }
    window.setTimeout(live, EVERY * (0.75 + Math.random() / 2), student);
  };
  const join = async () => {
    const before = tabMemory.readJson(key) ?? []; // the ids of an earlier load of this page
    for (let i = 0; i < CLASS; i += 1) {
      await quietly(async () => {
        const student = before[i] ?? (await call(`/${code}/join`, { body: {} })).student;
        students.push(student);
        live(student);
      });
    }
    tabMemory.write(key, JSON.stringify(students));
  };
  join();
  return (state) => {
    const { phase, place, question, expected } = state;
    const step = `${phase} ${place} ${question?.id}`;
    if (step === voted) return;
    voted = step;
    for (const vote of votes) clearTimeout(vote); // the vote was closed earlier
    votes = [];
    if (!(phase in RIGHT)) return;
    for (const student of students) {
      const value = drawnAnswer(question, expected.truth, RIGHT[phase]);
      const body = { place, round: phase, value };
      const send = () => quietly(() => call(`/${code}/vote`, { body, headers: { "Room-Student": student } }));
      votes.push(window.setTimeout(send, SLOWEST * Math.random()));
    }
  };
};

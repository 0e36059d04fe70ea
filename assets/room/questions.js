// @ts-check
// Questions for a class, from the lesson. Every number comes from profile, table and record of the shipped sets, by the
// lesson's own functions; none is hard-coded.
import { skillsOf } from "../canvas/model/data.js";
import { axisOf } from "../canvas/model/histogram.js";
import { missingOf } from "../lesson/record.js";
import { SCENES } from "../lesson/scenes.js";
import { canvasLink } from "./ask.js";
import { plainText } from "./view.js";

/** @param {string} path */
const read = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
};

/** The facts of a shipped set for the lesson's functions. @param {string} set */
const factsOf = async (set) => {
  const [profile, table, record] = await Promise.all([
    read(`room/material/${set}.json`), read(`ram/skills/${set}.json`), read(`ram/record/${set}.json`),
  ]);
  profile.skills = skillsOf(table, profile);
  profile.axis = axisOf(profile);
  return { profile, skills: profile.skills, record };
};

const PER_CENT = { low: 0, high: 100, step: 1, unit: "%" };

/** A scene's question. @param {any} scene @param {any} facts */
const questionOf = (scene, facts) => {
  const begun = { ...facts, settings: scene.start(facts) };
  const reached = { ...facts, settings: scene.target(facts) };
  const { value, text } = scene.measured(reached);
  const isShare = scene.guess === "share";
  return {
    id: scene.id,
    title: scene.title,
    ask: scene.ask(begun),
    ...(isShare ? { line: PER_CENT } : { choices: scene.guess }),
    truth: { value: isShare ? 100 * value : value, text },
    reveal: scene.reveal(reached),
    note: `On the canvas: ${plainText(scene.task(begun))}`,
    explore: canvasLink(facts.profile, reached.settings),
  };
};

/** The lesson's questions, for every scene that the shipped sets can answer. @returns {Promise<any[]>} */
export const lessonQuestions = async () => {
  const sets = [...new Set(SCENES.map(({ set }) => set))];
  const known = new Map(await Promise.all(sets.map(async (set) => /** @type {[string, any]} */ ([set, await factsOf(set)]))));
  return SCENES.flatMap((scene) => {
    const facts = known.get(scene.set);
    return missingOf(scene, facts).length ? [] : [questionOf(scene, facts)];
  });
};

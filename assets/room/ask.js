// @ts-check
// Ask the class: Tune's current merge becomes a question of the room that this browser leads. The class sees the
// settings; the merge's score stays hidden until the reveal.
import { linkOf } from "../canvas/model/links.js";
import { settingsText } from "../canvas/model/methods.js";
import { exactRow } from "../canvas/model/nearest.js";
import { listText } from "../canvas/model/words.js";
import { figure, figureText } from "../lesson/figures.js";
import { call } from "./api.js";
import { ledRoom } from "../led_room.js";

/** The query that opens Tune with these settings. @param {any} profile @param {any} settings */
export const canvasLink = (profile, settings) =>
  linkOf(document.baseURI, "tune", { profile, settings, dial: null, pin: null, weight: null, lesson: null, isPresented: false }).search;

/** The canvas's setting as a question, or null if it was not measured exactly. @param {any} profile @param {any} settings */
const canvasQuestion = (profile, settings) => {
  const row = profile.set && profile.skills ? exactRow(profile, settings) : null;
  if (!row) return null;
  const { asked } = profile.skills;
  const found = figure(row.total, asked);
  return {
    id: "canvas",
    title: "From the canvas",
    ask: [
      `Copies of one model, ${listText(profile.agents)}, were each trained for one job. They are merged: `,
      [settingsText(settings, profile)], `. How many of ${asked} questions does the merge solve?`,
    ],
    line: { low: 0, high: asked, step: 1, unit: `of ${asked}` },
    truth: { value: row.total, text: figureText(found), low: asked * found.low, high: asked * found.high },
    explore: canvasLink(profile, settings),
  };
};

/** Ask it now; returns a message for the teacher. @param {any} profile @param {any} settings @returns {Promise<string>} */
export const askClass = async (profile, settings) => {
  const room = ledRoom();
  if (!room) return "No room is open in this browser.";
  const question = canvasQuestion(profile, settings);
  if (!question) return "Only measured settings of the shipped agents can be asked: move to one.";
  try {
    await call(`/${room.code}/teacher`, { body: { action: "ask", question }, headers: { "Room-Token": room.token } });
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
  return `Room ${room.code} is asked what this merge solves. Open the vote on the room's page.`;
};

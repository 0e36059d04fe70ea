// @ts-check
// The modules of Tune and later steps: fetched when the first of them is shown, not with the landing page.
import { mountMeasured } from "./measured.js";
import { askedPlace, askNumber, leaveScope, mountScope } from "./microscope.js";
import { present } from "./canvas/canvas.js";
import { mountLesson as takeHost, takeLesson } from "./lesson/lesson.js";
import { mountVerdicts } from "./verdicts.js";
import { outcomeOf } from "./canvas/model/outcome.js";
import { state } from "./canvas/store.js";
import { dropEpsilon, giveSettings, lookAt, mergeForm, mount, remember, setProfile, show, update } from "./tune.js";

// For events of the page and tests, as members of window.RAM.
export const members = {
  askedPlace, askNumber, dropEpsilon, giveSettings, mergeForm, mount, mountMeasured, mountScope, mountVerdicts, outcomeOf, setProfile, update,
};

/** The lesson on the app's page. @param {(step: string) => void} open goes to a step
 * @param {(title: string | null) => void} titled sets the tab's title */
export const mountLesson = (open, titled) => takeHost({
  open: () => open("tune"), titled, remember, kit: "ram/kit.html",
  openSet: (set) => /** @type {HTMLElement | null} */ (document.querySelector(`.opens-${set}`))?.click(),
  recordOf: (set) => fetch(`ram/record/${set}.json`).then((answer) => (answer.ok ? answer.json() : null)),
});

// For page.js.
export { leaveScope, lookAt, present, remember, show, state, takeLesson };

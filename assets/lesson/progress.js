// What a tab remembers of the lesson: the scene that is open, and of every scene what was said, with which
// settings its answer was reached, and what was measured then.
const KEY = "ram-lesson";

const empty = () => ({ scene: null, answers: {} });

let known = null;

const read = () => {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY));
    return found?.answers ? found : empty();
  } catch { return empty(); } // storage refused, or written by something else
};

const write = () => {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(known));
  } catch { /* a reload then starts anew */ }
};

const progress = () => {
  known ??= read();
  return known;
};

export const openScene = () => progress().scene;

export const setOpenScene = (id) => {
  progress().scene = id;
  write();
};

// { value, said, settings, measured }; settings and measured once the answer was shown. Or {}.
export const answerOf = (id) => progress().answers[id] || {};

export const setAnswer = (id, changes) => {
  progress().answers[id] = { ...answerOf(id), ...changes };
  write();
};

export const forget = () => {
  known = empty();
  write();
};

// What the browser keeps. Where it keeps nothing (private windows, blocked storage), the page works all the same.

const failing = (call) => {
  try {
    return call();
  } catch {
    return null;
  }
};

export const kept = (area, name) => failing(() => JSON.parse(window[area].getItem(name)));

export const keep = (area, name, value) =>
  failing(() => {
    window[area].setItem(name, JSON.stringify(value));
    return true;
  }) ?? failing(() => window[area].removeItem(name)); // more than there is room for: better nothing than something old

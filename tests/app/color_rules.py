"""One visual language: blue is only what one agent changed, amber only what several did."""

from __future__ import annotations

# Of everything that is seen: which colors are blue or amber, but for those that mean it.
_STRAY = """(meant) => {
  const kindOf = (color) => {
    const found = color.match(/rgba?\\(([\\d.]+), ([\\d.]+), ([\\d.]+)(?:, ([\\d.]+))?\\)/);
    if (!found || (found[4] !== undefined && Number(found[4]) < 0.02)) return null;
    const [r, g, b] = found.slice(1, 4).map((part) => part / 255);
    const [most, least] = [Math.max(r, g, b), Math.min(r, g, b)];
    if (most - least < 0.15) return null;
    const place = most === r ? (g - b) / (most - least)
      : most === g ? 2 + (b - r) / (most - least) : 4 + (r - g) / (most - least);
    const hue = (60 * place + 360) % 360;
    return hue > 200 && hue < 250 ? "blue" : hue > 28 && hue < 52 ? "amber" : null;
  };
  const found = new Set();
  for (const node of document.querySelectorAll("body *")) {
    if (!node.checkVisibility({ opacityProperty: true }) || node.closest(meant)) continue;
    const style = getComputedStyle(node);
    const colors = node instanceof SVGElement ? { fill: style.fill, stroke: style.stroke }
      : { back: style.backgroundColor, shadow: style.boxShadow };
    if (parseFloat(style.borderLeftWidth)) colors.border = style.borderLeftColor;
    if (style.outlineStyle !== "none") colors.outline = style.outlineColor;
    if (![...node.childNodes].every((child) => child.nodeType !== 3)) colors.text = style.color;
    for (const [what, color] of Object.entries(colors)) {
      const kind = kindOf(color);
      const name = node.className.baseVal ?? node.className;
      if (kind) found.add(`${kind} ${what} of ${node.tagName} ${node.id} ${name}`);
    }
  }
  return [...found];
}"""
UNIQUE = "[class*=unique]"
MEANT = f"{UNIQUE}, [class*=shared], .scope-cell, #landing, #chart-patterns"


def stray_colors(page) -> list[str]:
    """Return what is seen blue or amber on a page and means neither unique nor shared."""
    return page.evaluate(_STRAY, MEANT)

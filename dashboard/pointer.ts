/** Whether something is being pressed. What moves away between press and release gets no click. */

/** A release that the page does not hear of, as over a menu of the browser, does not hold it up for longer. */
const LONGEST_MS = 5_000

let pressed: number | undefined
const waiting = new Set<() => void>()

function press(): void {
  window.clearTimeout(pressed)
  pressed = window.setTimeout(release, LONGEST_MS)
}

function release(): void {
  window.clearTimeout(pressed)
  pressed = undefined
  for (const act of waiting) act()
  waiting.clear()
}

addEventListener('mousedown', press, { capture: true })
// Ahead of what is clicked.
addEventListener('click', release, { capture: true })
// What is released elsewhere is not clicked.
addEventListener('mouseup', () => setTimeout(release), { capture: true })

/** Acts at once; while something is pressed, right before it is clicked. */
export function beforeClick(act: () => void): void {
  if (pressed === undefined) act()
  else waiting.add(act)
}

/** Resolves at once; while something is pressed, after it was clicked. */
export async function afterClick(): Promise<void> {
  if (pressed === undefined) return
  await new Promise<void>((resolve) => beforeClick(() => setTimeout(resolve)))
}

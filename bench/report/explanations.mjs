// Why a row of "What we lose at" is missed, written by hand after profiling: what the profile shows and what was tried. An
// entry belongs to a check of a scenario by its exact text. The report says so where an explanation is missing, and refuses
// an entry for a check that does not exist.

/** `[{ scenario, check, text }]`; `text` is Markdown. */
export const EXPLANATIONS = []
